"""This machine: the embedded stack, and the processes that commands start, keep and end."""
