"""Requests that fit the context, of rollouts that have become too long for it. Pure."""
