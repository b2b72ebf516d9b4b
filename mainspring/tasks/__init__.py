"""What a task is, how it is decided, and the patches that answer it. Pure."""
