"""The step engine `fsdp`: any causal language model of transformers, sharded by torch's FSDP2."""
