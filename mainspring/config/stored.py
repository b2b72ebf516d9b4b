"""A configuration as an earlier version of Mainspring stored it, read by this one.

A stored configuration is never rewritten: what was renamed since is translated when it is read.
Raises pydantic's ValidationError for what cannot be translated.
"""

from typing import Any

from mainspring.config.campaign import CampaignConfig
from mainspring.config.section import BUNDLED, STORED
from mainspring.config.trainer import Device

_OLD_MAX_GAP = 1e-3
"""Default of `trainer.max_logprob_gap`, where it was a field."""


def read_stored(raw: dict[str, Any]) -> CampaignConfig:
    agent = dict(raw.get("agent", {}))
    if agent.pop("short_prompts", False):
        agent["kind"] = "bundled"
    trainer = dict(raw.get("trainer", {}))
    old_gap = trainer.pop("max_logprob_gap", None)
    if old_gap is not None and "gap" not in trainer:
        trainer["gap"] = {} if old_gap == _OLD_MAX_GAP else {"max": old_gap}
    if trainer and "device" not in trainer:
        # The bundled model was trained wherever the trainer ran; others are for GPUs.
        bundled = raw.get("policy", {}).get("model", BUNDLED) == BUNDLED
        trainer["device"] = Device.CPU if bundled else Device.CUDA
    return CampaignConfig.model_validate(raw | {"agent": agent, "trainer": trainer}, context=STORED)
