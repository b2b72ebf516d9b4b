"""The critic of the fsdp engine: the numbers of the plain engine's, and of autograd by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mainspring.errors import ModelError
from mainspring.training.step_metrics import StepMetrics
from mainspring.trajectories.samples import Sample
from mainspring.trajectories.sequences import WeightedSequence
from tests.trainer import fsdp_jobs
from tests.trainer.any_models import samples_of, save_model
from tests.trainer.conftest import MakeModel
from tests.trainer.critics import MakeConfig, moved_from_before, with_critic, with_rewards
from tests.trainer.ranks import run
from tests.trainer.test_mcore_critic import are_close
from trainer.engines.fsdp.adapters import is_part
from trainer.engines.fsdp.weights import FsdpWeights
from trainer.model.convert import to_hf
from trainer.process.rank import TrainerRank
from trainer.step.critic import Critic, ValuedSample

FIELDS: dict[str, Any] = {"micro_batch_tokens": 64, "optimizer": {"eps": 1e-6}}
FSDP: dict[str, Any] = {"engine": "fsdp", **FIELDS}
CLIP: dict[str, Any] = {"critic": {"value_clip": 0.2, "gamma": 0.9, "gae_lambda": 0.8}}
HEAD = ("value_head.weight", "value_head.bias")


@pytest.fixture
def rewarded() -> list[Sample]:
    return with_rewards(samples_of(9, 30, num=7))


def critic_of(rank: TrainerRank) -> Critic:
    assert rank._critic is not None
    return rank._critic


def weights_of(rank: TrainerRank) -> FsdpWeights:
    weights = critic_of(rank).engine.weights
    assert isinstance(weights, FsdpWeights)
    return weights


def of_plain(config: Any, directory: Path, samples: list[Sample]) -> dict[str, Any]:
    """What `fsdp_jobs.valued_steps` gives, by one rank of the plain engine."""
    rank = TrainerRank(config, directory)
    critic: Any = critic_of(rank)
    head = critic.engine.model.value_head
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        head.weight.copy_(0.1 * torch.randn(head.weight.shape, generator=generator))
        head.bias.fill_(0.25)
    _, judged = critic.judge(samples)
    judged = moved_from_before(judged)
    grads: dict[str, torch.Tensor] = {}

    def keep(module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            grad = parameter.grad.clone()
            is_head = name.startswith("value_head.")
            grads.update({name: grad} if is_head else to_hf(name, [grad], critic.engine._hf))

    critic.watch(keep)
    figures = critic.train(judged, 0)
    critic.watch(None)
    rank.begin_critic()
    steps = [rank.train_step(samples, step=n, current_version=0) for n in range(3)]
    return {"judged": judged, "grads": grads, "figures": figures, "steps": steps}


def are_the_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Values, advantages, loss and gradients; the first values are 0."""
    assert all(not values.any() for values in found["first"])
    for mine, theirs in zip(found["judged"], expected["judged"], strict=True):
        mask = mine.sample.action_mask
        assert np.ptp(mine.values[mask]) > 0.1
        assert np.abs(mine.values - theirs.values).max() < 1e-5
        assert np.abs(mine.returns - theirs.returns).max() < 1e-5
        assert np.abs(mine.sample.advantages - theirs.sample.advantages).max() < 1e-4
    assert found["grads"].keys() == expected["grads"].keys()
    for name, grad in expected["grads"].items():
        assert float(grad.abs().max()) > 1e-5, name
        assert float((found["grads"][name] - grad).abs().max()) < 1e-5, name
    for name in ("value_loss", "value_clip_fraction"):
        assert found["figures"][name] == pytest.approx(expected["figures"][name], abs=1e-5)
    assert expected["figures"]["value_clip_fraction"] > 0


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_values_gradients_and_steps_are_those_of_the_plain_engine(
    num_ranks: int,
    is_tied: bool,
    make_model: MakeModel,
    make_config: MakeConfig,
    rewarded: list[Sample],
) -> None:
    """The gradient's names show that the critic has no output layer."""
    _, directory = make_model("qwen3", tied=is_tied)
    expected = of_plain(with_critic(make_config, **FIELDS, **CLIP), directory, rewarded)
    config = with_critic(make_config, **FSDP, **CLIP, data_parallel=num_ranks)
    for found in run(num_ranks, fsdp_jobs.valued_steps, config, {"it": directory}, rewarded):
        are_the_same(found["it"], expected)
        are_close(found["it"]["steps"], expected["steps"], 1e-4)
    moved = [each.values["value_mean"] for each in expected["steps"]]
    assert moved[0] == 0.0 and abs(moved[2]) > 0.01


def by_hand(
    directory: Path,
    judged: list[ValuedSample],
    head: tuple[torch.Tensor, torch.Tensor],
    clip: float,
) -> dict[str, Any]:
    """Values, loss and gradients by autograd on transformers' model, one sequence at a time."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    weight, bias = (part.clone().requires_grad_() for part in head)
    total, num_tokens, num_cut, of_samples = torch.zeros(()), 0, 0, []
    for each in judged:
        ids = torch.from_numpy(each.sample.token_ids.astype(np.int64))[None]
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, :-1]
        mask = each.sample.action_mask
        values = (hidden @ weight[0] + bias)[torch.from_numpy(mask[1:])]
        of_samples.append(values.detach().numpy())
        before, returns = (torch.from_numpy(row[mask]) for row in (each.values, each.returns))
        near = before + (values - before).clamp(-clip, clip)
        errors = torch.stack([(values - returns) ** 2, (near - returns) ** 2])
        total = total + 0.5 * errors.max(0).values.sum()
        num_cut += int((errors[1] > errors[0]).sum())
        num_tokens += len(values)
    (total / num_tokens).backward()
    named = {f"model.{n}": p.grad for n, p in model.base_model.named_parameters()}
    return {
        "values": of_samples,
        "grads": named | dict(zip(HEAD, (weight.grad, bias.grad), strict=True)),
        "loss": float(total.detach()) / num_tokens,
        "clipped": num_cut / num_tokens,
    }


OTHERS = ["qwen3_5_text", "gemma3_text", "gpt_oss", "phi"]
"""A state along the sequence; a tied output layer; experts; a bias of the output layer."""


@pytest.mark.parametrize(
    ("num_ranks", "options"), [(1, {}), (2, {}), (4, {"recompute": "full"})], ids=str
)
def test_values_and_gradients_are_autograds(
    num_ranks: int,
    options: dict[str, Any],
    make_config: MakeConfig,
    rewarded: list[Sample],
    tmp_path: Path,
) -> None:
    directories = {kind: tmp_path / kind for kind in OTHERS}
    for kind, directory in directories.items():
        save_model(kind, directory)
    config = with_critic(make_config, **FSDP, **CLIP, **options, data_parallel=num_ranks)
    found = run(num_ranks, fsdp_jobs.valued_steps, config, directories, rewarded)
    for kind, directory in directories.items():
        for own in (rank[kind] for rank in found):
            assert all(not values.any() for values in own["first"])
            expected = by_hand(directory, own["judged"], own["head"], clip=0.2)
            for mine, theirs in zip(own["values"], expected["values"], strict=False):
                assert np.ptp(theirs) > 0.1 and np.abs(mine - theirs).max() < 1e-5, kind
            assert own["figures"]["value_loss"] == pytest.approx(expected["loss"], abs=1e-5)
            assert own["figures"]["value_clip_fraction"] == pytest.approx(expected["clipped"])
            assert expected["clipped"] > 0
            assert own["grads"].keys() == expected["grads"].keys()
            for name, grad in expected["grads"].items():
                assert float((own["grads"][name] - grad).abs().max()) < 1e-5, (kind, name)


def test_ranks_without_sequences_and_a_failing_loss_leave_no_rank_behind(
    make_config: MakeConfig, rewarded: list[Sample], tmp_path: Path
) -> None:
    """Three samples on four ranks; the loss fails on one of them, and the next pass is right."""
    save_model("qwen3", tmp_path / "model")
    few, directory = rewarded[:3], {"it": tmp_path / "model"}
    config = with_critic(make_config, **FSDP, **CLIP)
    [[alone]] = [run(1, fsdp_jobs.valued_steps, config, directory, few)]
    config = with_critic(make_config, **FSDP, **CLIP, data_parallel=4)
    found = run(4, fsdp_jobs.failing_values, config, tmp_path / "model", few)
    assert [each["raised"] for each in found] == [False, True, False, False]
    assert sorted(each["num_own"] for each in found) == [0, 1, 1, 1]
    for each in found:
        for name, grad in alone["it"]["grads"].items():
            assert float((each["grads"][name] - grad).abs().max()) < 1e-5, name


def steps_of(rank: TrainerRank, samples: list[Sample], first: int, num: int) -> list[StepMetrics]:
    return [
        replace(rank.train_step(samples, step=n, current_version=0), seconds=0.0)
        for n in range(first, first + num)
    ]


def test_a_checkpoint_of_four_ranks_loads_on_two_and_one(
    make_config: MakeConfig, rewarded: list[Sample], tmp_path: Path
) -> None:
    save_model("qwen3_5_text", tmp_path / "model")
    out = tmp_path / "out"
    out.mkdir()
    config = with_critic(make_config, **FSDP, data_parallel=4)
    saved = run(4, fsdp_jobs.critic_saved, config, tmp_path / "model", rewarded, out)
    assert sorted(path.name for path in out.iterdir()) == ["critic", "shards"]
    assert (out / "critic" / ".metadata").is_file()
    for number in (4, 2, 1):
        config = with_critic(make_config, **FSDP, data_parallel=number)
        found = run(number, fsdp_jobs.critic_loaded, config, tmp_path / "model", rewarded, out)
        for each in found:
            bound = 1e-12 if number == 4 else 1e-4
            are_close([each["step"]], [saved[0]["step"]], bound)
            for name, weight in saved[0]["weights"].items():
                gap = float((each["weights"][name] - weight).abs().max())
                assert gap <= (0.0 if number == 4 else 1e-4), name


def test_a_resumed_rank_continues_with_the_same_numbers(
    make_config: MakeConfig, rewarded: list[Sample], tmp_path: Path
) -> None:
    save_model("qwen3", tmp_path / "model")
    save_model("qwen3", tmp_path / "wider", intermediate_size=56)
    config = with_critic(make_config, **FSDP, mini_batches=2, updates_per_step=2)
    rank = TrainerRank(config, tmp_path / "model")
    rank.train_step(rewarded, step=0, current_version=0)
    (tmp_path / "saved").mkdir()
    rank.save_checkpoint(tmp_path / "saved")
    expected = steps_of(rank, rewarded, 1, 2)
    resumed = TrainerRank(config, tmp_path / "model")
    resumed.load_checkpoint(tmp_path / "saved")
    assert steps_of(resumed, rewarded, 1, 2) == expected
    mine, theirs = weights_of(resumed).named(), weights_of(rank).named()
    assert all(torch.equal(mine[name], weight) for name, weight in theirs.items())
    with pytest.raises(ModelError, match=r"the critic in .* does not fit: .*Size mismatch"):
        critic_of(TrainerRank(config, tmp_path / "wider")).load(tmp_path / "saved")


def test_the_critic_begins_as_version_0_and_has_no_adapters(
    make_config: MakeConfig, rewarded: list[Sample], tmp_path: Path
) -> None:
    """The warm start moves the policy alone; then the critic takes its layers. Under adapters those
    are the frozen ones, of which the critic trains all."""
    save_model("qwen3", tmp_path / "model")
    rank = TrainerRank(with_critic(make_config, **FSDP), tmp_path / "model")
    sequences = [
        WeightedSequence(each.token_ids, each.action_mask.astype(np.float32)) for each in rewarded
    ]
    rank.supervised_step(sequences, 1.0)
    policy, mine = rank._weights.named(), weights_of(rank).named()
    body = mine.keys() - set(HEAD)
    assert body == policy.keys() - {"lm_head.weight"}
    assert not any(torch.equal(mine[name], policy[name]) for name in body)
    fsdp_jobs.set_head(rank)
    rank.begin_critic()
    assert all(torch.equal(mine[name], policy[name]) for name in body)
    assert not any(mine[name].any() for name in HEAD)

    lora = {"rank": 4, "alpha": 8.0}
    adapted = TrainerRank(with_critic(make_config, **FSDP, lora=lora), tmp_path / "model")
    adapted.begin_critic()
    start = {name: weight.clone() for name, weight in weights_of(adapted).named().items()}
    assert start.keys() == mine.keys() and not any(map(is_part, start))
    found = steps_of(adapted, rewarded, 0, 2)
    assert (found[1].grad_norm or 0) > 0 and found[1].values["value_mean"] != 0.0
    frozen = adapted._weights.named()
    for name, weight in weights_of(adapted).named().items():
        assert not torch.equal(weight, start[name]), name
        if name in body:
            assert torch.equal(frozen[name], start[name]), name


def test_the_head_is_float32_where_the_layers_are_bfloat16(
    make_config: MakeConfig, rewarded: list[Sample], tmp_path: Path
) -> None:
    save_model("qwen3", tmp_path / "model")
    found = []
    for dtype in ("float32", "bfloat16"):
        rank = TrainerRank(with_critic(make_config, **FSDP, dtype=dtype), tmp_path / "model")
        weights = weights_of(rank)
        with torch.no_grad():
            weights.parameters()["value_head.bias"].fill_(1.0009765625)  # 1 in bfloat16
        for values, sample in zip(critic_of(rank)._values(rewarded), rewarded, strict=True):
            assert (values[sample.action_mask] == np.float32(1.0009765625)).all()
        assert all(weight.dtype is torch.float32 for weight in weights.named().values())
        rank.begin_critic()
        found.append(steps_of(rank, rewarded, 0, 2)[1].values)
    exact, rounded = found
    for name in ("value_loss", "value_mean"):
        assert rounded[name] == pytest.approx(exact[name], abs=2e-2) and exact[name]


def test_a_critic_in_the_hosts_memory_takes_the_same_steps(
    make_config: MakeConfig, rewarded: list[Sample], tmp_path: Path
) -> None:
    """As on GPUs, where alone a file may ask for it."""
    save_model("qwen3", tmp_path / "model")
    config = with_critic(make_config, **FSDP)
    offload = config.trainer.model_copy(update={"optimizer_offload": True})
    found = []
    for each in (config, config.model_copy(update={"trainer": offload})):
        rank = TrainerRank(each, tmp_path / "model")
        rank.begin_critic()
        steps_of(rank, rewarded, 0, 2)
        found.append({name: weight.clone() for name, weight in weights_of(rank).named().items()})
    assert all(torch.equal(found[1][name], weight) for name, weight in found[0].items())
