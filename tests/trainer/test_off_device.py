"""Ranks leave their device and come back: steps are the same in all bits, and the memory is free
in between."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mainspring.config.campaign import CampaignConfig
from mainspring.errors import ConfigError
from tests.trainer.conftest import weights_of
from tests.trainer.critics import with_critic, with_rewards
from trainer.engines.off_device import OffDevice
from trainer.engines.plain import PlainEngine
from trainer.process.rank import TrainerRank

CHANGES: dict[str, dict[str, Any]] = {
    "plain with muon": {"optimizer": {"name": "muon"}},
    "plain with adapters": {},
    "plain with a reference": {"kl": {"coef": 0.1}},
    "fsdp": {"engine": "fsdp"},
    "fsdp with adapters": {"engine": "fsdp"},
    "fsdp with muon": {"engine": "fsdp", "optimizer": {"name": "muon"}},
}


def config_of(make_config: Callable[..., CampaignConfig], change: str) -> CampaignConfig:
    lora = {"rank": 4} if "adapters" in change else None
    return make_config(**CHANGES[change], lora=lora, colocate=True)


@pytest.mark.parametrize("change", CHANGES)
def test_steps_with_leaves_between_are_the_same_in_all_bits(
    change, make_model, make_config, batch, tmp_path
):
    _, directory = make_model("qwen3")
    found = []
    for leaves in (False, True):
        rank = TrainerRank(config_of(make_config, change), directory)
        for step in range(3):
            if leaves:
                for wanted in (False, False, True, True):
                    rank.be_on_device(wanted)
            rank.train_step(batch, step=step, current_version=0)
        found.append(weights_of(rank, tmp_path / f"{leaves}"))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("engine", ["plain", "fsdp"])
def test_a_critic_leaves_with_the_policy(engine, make_model, make_config, batch):
    _, directory = make_model("qwen3")
    rewarded, losses = with_rewards(batch), []
    for leaves in (False, True):
        rank = TrainerRank(with_critic(make_config, engine=engine, colocate=True), directory)
        rank.begin_critic()
        for step in range(2):
            if leaves:
                rank.be_on_device(False)
                assert rank._critic is not None
                held = [*rank._engine.held(), *rank._critic.held()]
                assert not any(tensor.untyped_storage().nbytes() for tensor in held if tensor.ndim)
                rank.be_on_device(True)
            metrics = rank.train_step(rewarded, step=step, current_version=0)
        losses.append({**metrics.values, "loss": metrics.loss, "norm": metrics.grad_norm})
    assert losses[0] == losses[1]


@pytest.mark.parametrize("engine", ["plain", "fsdp"])
def test_the_memory_of_weights_and_moments_is_free(engine, make_model, make_config, batch):
    model, directory = make_model("qwen3")
    rank = TrainerRank(make_config(engine=engine, colocate=True), directory)
    rank.train_step(batch, step=0, current_version=0)
    held = [*rank._engine.held(), *rank._optimizer.held()]
    before = sum(tensor.untyped_storage().nbytes() for tensor in held)
    num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    rank.be_on_device(False)
    assert sum(tensor.untyped_storage().nbytes() for tensor in held) == 0
    # Weights and two moments of each.
    assert 3 * num_bytes <= rank._off_device.num_bytes <= before
    rank.be_on_device(True)
    assert sum(tensor.untyped_storage().nbytes() for tensor in held) == before
    assert rank._off_device.num_bytes == 0


def test_what_shares_memory_moves_once() -> None:
    off = OffDevice(torch.device("cpu"))
    whole = torch.arange(6.0)
    view, copy = whole[2:], whole.clone()
    off.leave([whole, view])
    assert off.num_bytes == 24
    off.come_back()
    assert torch.equal(whole, copy) and torch.equal(view, copy[2:])


def test_an_engine_of_ones_own_that_cannot_leave_is_refused(make_model, make_config) -> None:
    config = make_config(engine="tests.trainer.test_off_device:Staying", colocate=True)
    with pytest.raises(ConfigError, match="cannot leave its device"):
        TrainerRank(config, make_model("qwen3")[1])


class Staying:
    """An engine without `held`."""

    def __init__(self, config, model_dir, processes) -> None:
        own = PlainEngine(config, model_dir, processes)
        for name in ("weights", "files", "optimizer", "logprobs", "forward_backward"):
            setattr(self, name, getattr(own, name))
