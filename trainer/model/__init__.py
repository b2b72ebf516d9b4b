"""The policy's model: its process groups, layers, weights and tokens' log-probs.

The ground of the trainer: imports no other room of it.
"""
