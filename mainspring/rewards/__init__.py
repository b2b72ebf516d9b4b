"""Reward for a rollout's end, and pass@k over many of them. Pure."""
