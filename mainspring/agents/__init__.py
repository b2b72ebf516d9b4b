"""Agents: what the policy is told, how its replies are read, and when it is done. Pure."""
