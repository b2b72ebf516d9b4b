"""Seeds of sampling: functions of what is asked for, never of when, where or by whom. Pure.

Without a name of the campaign in them, so that two campaigns of one configuration sample alike.
"""

import hashlib

SEED_BITS = 31
"""Engines keep seeds in signed integers, some of 32 bits."""


def draw_seed(campaign_seed: int, task: str, draw: int, index: int) -> int:
    """Seed of the `index`-th rollout of a training group: see `algorithms.schedule` for draws."""
    return _seed("draw", campaign_seed, task, draw, index)


def evaluation_seed(campaign_seed: int, task: str, version: int, index: int) -> int:
    """Seed of a rollout that measures policy version `version`."""
    return _seed("evaluation", campaign_seed, task, version, index)


def call_seed(rollout_seed: int, call: int) -> int:
    """Seed of one reply. An engine draws each token from it and the token's position, so a reply
    that was cut off continues with the same tokens."""
    return _seed("call", rollout_seed, call)


def _seed(*parts: str | int) -> int:
    hashed = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(hashed[:8]) >> (64 - SEED_BITS)
