"""Agents of the package Harbor as players of rollouts, each in a process of its own."""
