"""Python functions that play rollouts, each in a process of its own beside its node's."""
