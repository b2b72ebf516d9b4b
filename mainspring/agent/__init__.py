"""What the agent is told and how its replies are read: prompts, actions, observations. Pure."""
