"""Plans of what is to be played or opened next, read from what is stored."""
