"""Checks before a run is stored: whether its parts, model, tasks and machine can do it."""
