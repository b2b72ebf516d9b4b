"""Campaigns and models that tests of planning share."""

from typing import Any

from mainspring.config.campaign import CampaignConfig
from mainspring.planning.known_models import MODELS
from mainspring.planning.model_shape import ModelShape, read_shape

MCORE = {"device": "cuda", "engine": "mcore", "dtype": "bfloat16"}
PLAIN = {"device": "cpu"}


def model(name: str) -> ModelShape:
    return read_shape(MODELS / name)


def campaign(trainer: dict[str, Any], **policy: Any) -> CampaignConfig:
    return CampaignConfig.model_validate(
        {"name": "planned", "policy": {"model": "/m", **policy}, "trainer": trainer}
    )
