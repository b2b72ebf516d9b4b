"""What keeps, moves and removes stored work: campaigns and whole homes."""
