"""The critic's model, by step engine: `plain`, `mcore`, `fsdp`. Chosen by `trainer.step.critic`."""
