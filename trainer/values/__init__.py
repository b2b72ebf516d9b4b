"""The critic's model, by step engine: `plain` and `mcore`. Chosen by `trainer.step.critic`."""
