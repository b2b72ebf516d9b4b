"""Tasks, how they are decided, and the patches that answer them. Pure."""
