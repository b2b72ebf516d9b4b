"""What an agent's request shows of a rollout that has become too long for the context. Pure."""
