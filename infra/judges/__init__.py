"""Judges: models that vote on turns and rollouts."""
