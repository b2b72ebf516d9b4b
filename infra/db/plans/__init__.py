"""What is to be played or opened next, read from what is stored."""
