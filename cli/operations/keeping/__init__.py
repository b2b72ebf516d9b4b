"""Commands that keep, move and remove stored work: campaigns and whole homes."""
