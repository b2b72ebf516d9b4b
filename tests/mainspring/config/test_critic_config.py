"""[trainer.critic]: what makes no sense with it is refused by name, before anything starts."""

from typing import Any

import pytest
from pydantic import ValidationError

from mainspring.algorithms.choice import check_algorithms
from mainspring.algorithms.closing import closing_status
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.critic import CriticConfig
from mainspring.status import GroupKind, GroupStatus

GAE: dict[str, Any] = {"advantage": "gae", "filter": "none", "critic": {}, "device": "cpu"}


def test_an_empty_section_suffices_and_flat_groups_are_trained() -> None:
    trainer = TrainerConfig.model_validate(GAE)
    check_algorithms(trainer)
    assert trainer.critic == CriticConfig() and TrainerConfig().critic is None
    assert closing_status([1.0, 1.0], GroupKind.TRAIN, trainer) is GroupStatus.READY
    assert closing_status([None, 1.0], GroupKind.TRAIN, trainer) is GroupStatus.MASKED


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"critic": None}, r'advantage = "gae" needs a critic: add the section \[trainer.critic\]'),
        ({"advantage": "grpo"}, r'\[trainer.critic\] would do nothing with advantage = "grpo"'),
        ({"advantage": "own:advantage"}, 'would do nothing with advantage = "own:advantage"'),
        ({"filter": "mixed"}, 'filter = "mixed" replaces groups that a critic learns from'),
        ({"filter": "solved"}, 'filter = "solved" replaces groups'),
        (
            {"engine": "own:Engine", "pipeline_parallel": 2},
            "a critic is shared by pipeline_parallel",
        ),
        ({"engine": "own:Engine", "context_parallel": 2}, "shared by context_parallel with the"),
        (
            {"engine": "own:Engine", "tensor_parallel": 2, "sequence_parallel": True},
            "shared by sequence_parallel with the",
        ),
        ({"device": "cuda", "checkpoint_in_background": True}, "not written in the background"),
        ({"engine": "fsdp", "checkpoint_in_background": True}, "not written in the background"),
        ({"engine": "fsdp", "tensor_parallel": 2}, '"fsdp" cannot do tensor_parallel = 2'),
        ({"kl": {"coef": 0.1, "where": "reward"}}, 'kl.where = "reward" changes advantages'),
        ({"num_steps": 3, "critic": {"warmup_steps": 3}}, "the policy would never be trained"),
        ({"critic": {"gamma": 1.1}}, "critic.gamma"),
        ({"critic": {"gae_lambda": -0.1}}, "critic.gae_lambda"),
        ({"critic": {"value_clip": 0.0}}, "critic.value_clip"),
        ({"critic": {"lambda": 1.0}}, "critic.lambda"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TrainerConfig.model_validate(GAE | fields)


def test_what_goes_with_a_critic_is_allowed() -> None:
    for fields in (
        {"kl": {"coef": 0.1}},
        {"overlong": "mask"},
        {"filter": "own:filter"},
        {"loss": "gspo", "mini_batches": 2, "updates_per_step": 2},
        {"tensor_parallel": 2, "data_parallel": 2},
        {"lora": {"rank": 4}},
        {"engine": "plain", "device": "cuda"},
        {"engine": "fsdp"},
        {"engine": "fsdp", "device": "cuda", "data_parallel": 8, "dtype": "bfloat16"},
        {"engine": "fsdp", "device": "cuda", "recompute": "full", "optimizer_offload": True},
        {"engine": "fsdp", "colocate": True, "lora": {"rank": 4}},
        {"device": "cuda", "tensor_parallel": 2, "sequence_parallel": True, "context_parallel": 2},
        {"device": "cuda", "pipeline_parallel": 2},
    ):
        TrainerConfig.model_validate(GAE | fields)
