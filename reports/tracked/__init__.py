"""A campaign as experiment trackers get it: figures of its steps, and traces of its rollouts."""
