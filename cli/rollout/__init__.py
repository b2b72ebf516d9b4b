"""`mainspring rollout ...`: its commands and their screen."""
