"""What the checklist finds about a campaign's model before anything is stored or started."""

from pathlib import Path
from typing import Any

import pytest

from cli.operations.checklist import State, model_item
from mainspring.config.campaign import CampaignConfig
from tests.infra.policy.tiny_model import save_tiny_model


def campaign(model: Path, **trainer: Any) -> CampaignConfig:
    policy = {"model": str(model), "max_context": 64, "max_new_tokens": 16}
    return CampaignConfig.model_validate({"name": "c", "policy": policy, "trainer": trainer})


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"tensor_parallel": 3}, "trainer.tensor_parallel = 3 does not divide the model's"),
        ({"pipeline_parallel": 5}, "trainer.pipeline_parallel = 5 does not divide the model's"),
        ({"expert_parallel": 2, "data_parallel": 2}, "trainer.expert_parallel = 2 does not divide"),
    ],
)
def test_sizes_that_divide_nothing_are_refused_with_both_numbers(
    tmp_path: Path, sizes: dict[str, int], says: str
) -> None:
    model = save_tiny_model(tmp_path / "model")
    assert model_item(campaign(model)).state is State.OK
    found = model_item(campaign(model, device="cuda", **sizes))
    assert found.state is State.MISSING and says in found.found and found.fix


def test_a_missing_shard_is_refused_by_name(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    [weights] = model.glob("*.safetensors")
    weights.rename(tmp_path / "elsewhere")
    found = model_item(campaign(model))
    assert found.state is State.MISSING and "safetensors" in found.found
