"""Trajectory of a rollout, turn by turn, and the sample that training takes from it. Pure."""
