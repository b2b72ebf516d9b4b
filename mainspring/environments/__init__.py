"""Environments that agents act on: the seam, and which environment plays a task. Pure."""
