"""Tools that agents offer: a schema for the policy, and a command for the sandbox. Pure."""
