"""What an agent acts on: the seam, and which environment plays a task. Pure."""
