"""The parallel plan of a campaign file: what is derived, and what is refused."""

import pytest
from pydantic import ValidationError

from mainspring.algorithms.choice import check_algorithms
from mainspring.config.trainer import TrainerConfig
from mainspring.errors import ConfigError


def test_the_engine_is_the_devices_unless_it_is_set() -> None:
    assert TrainerConfig().engine_name == "mcore"
    assert TrainerConfig(device="cpu").engine_name == "plain"
    assert TrainerConfig(engine="plain").engine_name == "plain"


def test_the_number_of_ranks_is_the_product_of_what_shares() -> None:
    sizes = {"tensor_parallel": 2, "pipeline_parallel": 3, "data_parallel": 4}
    config = TrainerConfig(**sizes, context_parallel=2, expert_parallel=4)
    assert config.world_size == 48


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"device": "cpu", "pipeline_parallel": 2}, "pipeline_parallel = 2"),
        ({"device": "cpu", "dtype": "bfloat16"}, "dtype = bfloat16"),
        ({"device": "cpu", "recompute": "full"}, "recompute = full"),
        ({"sequence_parallel": True}, "tensor_parallel = 2 or more"),
        ({"data_parallel": 3, "expert_parallel": 2}, "expert_parallel = 2 does not divide the 3"),
        ({"colocate": True}, 'the engine "mcore" cannot: set engine = "fsdp"'),
        (
            {"colocate": True, "engine": "fsdp", "checkpoint_in_background": True},
            "ranks that have left",
        ),
        ({"engine": "fsdp", "tensor_parallel": 2}, '"fsdp" cannot do tensor_parallel = 2'),
        ({"engine": "fsdp", "expert_parallel": 2}, '"fsdp" cannot do expert_parallel = 2'),
        ({"engine": "fsdp", "recompute": "mlp"}, 'cannot do recompute = "mlp"'),
        (
            {"engine": "fsdp", "device": "cpu", "optimizer_offload": True},
            "moves what is on a GPU",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        TrainerConfig.model_validate(given)


def test_the_fsdp_engine_has_settings_of_both_others() -> None:
    fields = {"engine": "fsdp", "dtype": "bfloat16", "recompute": "full", "data_parallel": 8}
    config = TrainerConfig.model_validate(fields | {"checkpoint_in_background": True})
    check_algorithms(config)
    assert config.world_size == 8
    check_algorithms(TrainerConfig(engine="fsdp", device="cpu", data_parallel=2))


def test_mcore_on_a_cpu_is_refused_before_anything_is_stored() -> None:
    with pytest.raises(ConfigError, match=r"needs trainer\.device = 'cuda', found 'cpu'"):
        check_algorithms(TrainerConfig(engine="mcore", device="cpu"))
