"""Ways in which kinds of engines are spoken to, one file each."""
