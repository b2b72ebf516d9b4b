"""What a rollout's end is worth, and pass@k over many of them. Pure."""
