"""The critic on real ranks: values, loss and gradient against Hugging Face and autograd, and what a
checkpoint keeps of it."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from mainspring.algorithms.gae import gae, whitened
from mainspring.errors import ModelError
from mainspring.training.step_metrics import CRITIC_NAMES
from mainspring.training.training_faults import LogprobGapTooLarge, NonFiniteStep
from mainspring.trajectories.samples import Sample
from mainspring.trajectories.sequences import WeightedSequence
from tests.trainer import rank_jobs, ranks
from tests.trainer.conftest import MakeModel, largest_gap, weights_of
from tests.trainer.critics import MakeConfig, moved_from_before, with_critic, with_rewards
from trainer.process.rank import TrainerRank
from trainer.step.critic import Critic
from trainer.step.schedule import lr_scale


@pytest.fixture
def rewarded(batch: list[Sample]) -> list[Sample]:
    return with_rewards(batch)


def critic_of(rank: TrainerRank) -> Critic:
    assert rank._critic is not None
    return rank._critic


def move_head(rank: TrainerRank) -> tuple[torch.Tensor, torch.Tensor]:
    """A head that is not zero, so that values differ; its weight and bias."""
    head = critic_of(rank).engine.model.value_head
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=generator))
        head.bias.fill_(0.25)
    return head.weight, head.bias


def hf_values(
    model: PreTrainedModel, sample: Sample, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Of the action tokens, unpacked: one sequence at a time."""
    ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
    hidden = model.model(input_ids=ids).last_hidden_state[0, :-1]
    mask = torch.from_numpy(sample.action_mask[1:])
    return (hidden @ weight[0] + bias)[mask]


@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("qwen2", False), ("llama", True)])
def test_values_loss_and_gradient_equal_hugging_face(
    family: str, tied: bool, make_model: MakeModel, make_config: MakeConfig, rewarded: list[Sample]
) -> None:
    model, directory = make_model(family, tied=tied)
    config = with_critic(
        make_config, micro_batch_tokens=64, critic={"value_clip": 0.2, "max_grad_norm": 1e9}
    )
    rank = TrainerRank(config, directory)
    critic = critic_of(rank)
    weight, bias = move_head(rank)
    _, judged = critic.judge(rewarded)
    kept = rewarded[:-1]
    assert [each.sample.rollout for each in judged] == [each.rollout for each in kept]
    judged = moved_from_before(judged)
    head = weight.detach().clone().requires_grad_(), bias.detach().clone().requires_grad_()
    total, num_tokens, num_cut = torch.zeros(()), 0, 0
    for sample, each in zip(kept, judged, strict=True):
        values = hf_values(model, sample, *head)
        before, returns = (
            torch.from_numpy(row[sample.action_mask]) for row in (each.values, each.returns)
        )
        near = before + (values - before).clamp(-0.2, 0.2)
        errors = torch.stack([(values - returns) ** 2, (near - returns) ** 2])
        total = total + 0.5 * errors.max(0).values.sum()
        num_cut += int((errors[1] > errors[0]).sum())
        num_tokens += len(values)
    loss = total / num_tokens
    model.zero_grad()
    loss.backward()
    seen: dict[str, torch.Tensor] = {}

    def keep(module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            seen[name] = parameter.grad.clone()

    critic.watch(keep)
    figures = critic.train(judged, 0)
    assert num_cut and figures["value_clip_fraction"] == pytest.approx(num_cut / num_tokens)
    assert figures["value_loss"] == pytest.approx(loss.item(), abs=1e-5)
    expected = dict(model.model.named_parameters())
    for mine, theirs in (
        ("embedding.word_embeddings.weight", expected["embed_tokens.weight"].grad),
        ("decoder.final_layernorm.weight", expected["norm.weight"].grad),
        (
            "decoder.layers.0.self_attention.linear_proj.weight",
            expected["layers.0.self_attn.o_proj.weight"].grad,
        ),
        (
            "decoder.layers.1.mlp.linear_fc2.weight",
            expected["layers.1.mlp.down_proj.weight"].grad,
        ),
        ("value_head.weight", head[0].grad),
        ("value_head.bias", head[1].grad),
    ):
        assert theirs is not None and theirs.abs().max() > 1e-4, mine
        assert (seen[mine] - theirs).abs().max() < 1e-5, mine
    norm = torch.stack(
        [p.grad.norm() for p in (*expected.values(), *head) if p.grad is not None]
    ).norm()
    assert figures["critic_grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_advantages_are_those_of_the_values_before_the_step(
    make_model: MakeModel, make_config: MakeConfig, rewarded: list[Sample]
) -> None:
    model, directory = make_model("qwen3")
    rates = {"gamma": 0.9, "gae_lambda": 0.8}
    rank = TrainerRank(with_critic(make_config, critic=rates), directory)
    head = move_head(rank)
    samples, judged = critic_of(rank).judge(rewarded)
    assert samples[-1] is rewarded[-1] and not samples[-1].carries_advantage
    with torch.no_grad():
        values_N = [hf_values(model, sample, *head).numpy() for sample in rewarded[:-1]]
    advantages_N = [
        gae(values, sample.reward or 0.0, gamma=0.9, gae_lambda=0.8)
        for values, sample in zip(values_N, rewarded, strict=False)
    ]
    expected_N = whitened([advantages for advantages, _ in advantages_N])
    for each, values, expected, (_, returns) in zip(
        judged, values_N, expected_N, advantages_N, strict=True
    ):
        mask = each.sample.action_mask
        assert each.values[mask] == pytest.approx(values, abs=1e-5)
        assert each.returns[mask] == pytest.approx(returns, abs=1e-5)
        assert each.sample.advantages[mask] == pytest.approx(expected, abs=1e-4)
        assert not each.sample.advantages[~mask].any()


def test_the_first_values_are_zero_and_equal_rewards_train_all_the_same(
    make_model: MakeModel, make_config: MakeConfig, rewarded: list[Sample]
) -> None:
    """Without whitening the first advantages are the rewards; one of 0 stays in the denominator."""
    plain = with_critic(make_config, critic={"whiten": False})
    rank = TrainerRank(plain, make_model("qwen3")[1])
    zeros = [replace(each, reward=0.0) for each in rewarded[:-1]]
    _, judged = critic_of(rank).judge(rewarded)
    assert all(not each.values.any() for each in judged)
    for each in judged:
        expected = np.where(each.sample.action_mask, np.float32(each.sample.reward or 0), 0)
        assert each.sample.advantages.tolist() == expected.tolist()
    found = rank.train_step(rewarded, step=0, current_version=0)
    assert found.num_samples == 7
    assert found.num_tokens == sum(each.num_action_tokens for each in zeros)
    assert found.values.keys() > CRITIC_NAMES
    assert found.values["value_explained_variance"] == 0.0
    flat = [replace(each, reward=1.0) for each in rewarded]
    again = TrainerRank(plain, make_model("qwen3")[1])
    assert (again.train_step(flat, step=0, current_version=0).grad_norm or 0) > 0
    nothing = TrainerRank(plain, make_model("qwen3")[1])
    found = nothing.train_step(zeros, step=0, current_version=0)
    assert (found.num_samples, found.grad_norm, found.values["value_loss"]) == (7, 0.0, 0.0)
    assert found.values["value_explained_variance"] is None


def test_explained_variance_rises_over_steps(
    make_model: MakeModel, make_config: MakeConfig, rewarded: list[Sample]
) -> None:
    config = with_critic(
        make_config, num_steps=12, updates_per_step=2, mini_batches=2, optimizer={"lr": 1e-6}
    )
    rank = TrainerRank(config, make_model("qwen3")[1])
    found = [rank.train_step(rewarded, step=n, current_version=0).values for n in range(12)]
    explained = [each["value_explained_variance"] for each in found]
    losses = [each["value_loss"] for each in found]
    assert explained[0] == 0.0
    assert explained[-1] is not None and explained[-1] > 0.8
    assert losses[0] is not None and losses[-1] is not None and losses[-1] < 0.2 * losses[0]


def test_a_warm_up_moves_the_critic_alone(
    make_model: MakeModel, make_config: MakeConfig, rewarded: list[Sample], tmp_path: Path
) -> None:
    rank = TrainerRank(with_critic(make_config, critic={"warmup_steps": 1}), make_model("qwen3")[1])
    before = weights_of(rank, tmp_path / "before")
    first = rank.train_step(rewarded, step=0, current_version=0)
    assert (first.num_samples, first.num_trained_tokens, first.grad_norm) == (0, 0, None)
    assert first.num_gap_tokens > 0 and (first.values["critic_grad_norm"] or 0) > 0
    assert largest_gap(weights_of(rank, tmp_path / "after"), before) == 0.0
    second = rank.train_step(rewarded, step=1, current_version=0)
    assert second.num_samples == 7 and second.values["value_mean"] != 0.0
    assert largest_gap(weights_of(rank, tmp_path / "second"), before) > 0.0


@pytest.mark.parametrize("warmup_steps", [1, 3])
def test_a_critics_warm_up_takes_nothing_from_the_policys_schedule(
    warmup_steps: int, make_model: MakeModel, make_config: MakeConfig, rewarded: list[Sample]
) -> None:
    optimizer = {"lr": 1e-3, "warmup_steps": 3, "final_lr_fraction": 0.2}
    config = with_critic(
        make_config, num_steps=6, optimizer=optimizer, critic={"warmup_steps": warmup_steps}
    )
    rank = TrainerRank(config, make_model("qwen3")[1])
    rates = [rank.train_step(rewarded, step=n, current_version=0).lr for n in range(6)]
    num_policy_steps = 6 - warmup_steps
    of_policy = [1e-3 * lr_scale(n, num_policy_steps, 3, 0.2) for n in range(num_policy_steps)]
    assert rates == [None] * warmup_steps + of_policy
    assert rates[warmup_steps] == pytest.approx(1e-3 / 3)


def test_a_step_that_moves_nothing_has_no_learning_rate(
    make_model: MakeModel, make_config: MakeConfig, batch: list[Sample]
) -> None:
    rank = TrainerRank(make_config(), make_model("qwen3")[1])
    flat = [replace(each, advantages=np.zeros_like(each.advantages)) for each in batch]
    for samples in (flat, []):
        assert rank.train_step(samples, step=0, current_version=0).lr is None
    assert rank.train_step(batch, step=0, current_version=0).lr is not None


def test_resuming_gives_the_same_numbers(
    make_model: MakeModel, make_config: MakeConfig, rewarded: list[Sample], tmp_path: Path
) -> None:
    directory = make_model("qwen3")[1]
    config = with_critic(make_config)
    rank = TrainerRank(config, directory)
    rank.train_step(rewarded, step=0, current_version=0)
    rank.save_checkpoint(tmp_path)
    expected = [rank.train_step(rewarded, step=n, current_version=0) for n in (1, 2)]
    resumed = TrainerRank(config, directory)
    resumed.load_checkpoint(tmp_path)
    again = copy.deepcopy(rewarded)
    found = [resumed.train_step(again, step=n, current_version=0) for n in (1, 2)]
    assert [replace(each, seconds=0.0) for each in found] == [
        replace(each, seconds=0.0) for each in expected
    ]
    gap = largest_gap(weights_of(rank, tmp_path / "a"), weights_of(resumed, tmp_path / "b"))
    assert gap == 0.0
    with pytest.raises(ModelError, match=r"the critic in .* does not fit: .*shape"):
        wider = TrainerRank(config, directory)
        saved = torch.load(tmp_path / "critic-tp0.pt", weights_only=True)
        saved["model"]["value_head.weight"] = torch.zeros(1, 7)
        torch.save(saved, tmp_path / "critic-tp0.pt")
        wider.load_checkpoint(tmp_path)


def test_the_critic_begins_as_version_0(
    make_model: MakeModel, make_config: MakeConfig, rewarded: list[Sample]
) -> None:
    """The warm start moves the policy alone; then the critic takes its layers."""
    sequences = [
        WeightedSequence(each.token_ids, each.action_mask.astype(np.float32)) for each in rewarded
    ]
    rank = TrainerRank(with_critic(make_config), make_model("qwen3")[1])
    rank.supervised_step(sequences, 1.0)
    critic = critic_of(rank)
    move_head(rank)
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    policy, mine = rank._weights.named()[name], critic.engine.weights.named()[name]
    assert not torch.equal(policy, mine)
    rank.begin_critic()
    assert torch.equal(policy, mine) and policy.data_ptr() != mine.data_ptr()
    head = critic.engine.model.value_head
    assert not head.weight.any() and not head.bias.any()


def test_a_step_that_is_refused_leaves_the_critic_as_it_was(
    make_model: MakeModel, make_config: MakeConfig, rewarded: list[Sample]
) -> None:
    rank = TrainerRank(with_critic(make_config, gap={"max": 1e-3}), make_model("qwen3")[1])
    before = {n: w.clone() for n, w in critic_of(rank).engine.weights.named().items()}
    with pytest.raises(LogprobGapTooLarge):
        rank.train_step(rewarded, step=0, current_version=0)
    wrong = [replace(each, reward=float("inf")) for each in rewarded]
    free = TrainerRank(with_critic(make_config, critic={"whiten": False}), make_model("qwen3")[1])
    with pytest.raises(NonFiniteStep):
        free.train_step(wrong, step=0, current_version=0)
    for name, weight in critic_of(rank).engine.weights.named().items():
        assert torch.equal(weight, before[name])


@pytest.mark.parametrize("layout", ["data_parallel", "tensor_parallel"])
def test_two_ranks_equal_one(
    layout: str,
    make_model: MakeModel,
    make_config: MakeConfig,
    rewarded: list[Sample],
    tmp_path: Path,
) -> None:
    directory = make_model("qwen3")[1]
    fields = {"micro_batch_tokens": 64, "optimizer": {"eps": 1e-6}}
    alone = TrainerRank(with_critic(make_config, **fields), directory)
    expected = [alone.train_step(rewarded, step=n, current_version=0) for n in range(3)]
    config = with_critic(make_config, **fields, **{layout: 2})
    found = ranks.run(2, rank_jobs.plain_steps, config, directory, rewarded, tmp_path / "two")
    assert _figures(found[0]) == _figures(found[1])
    for mine, theirs in zip(found[0], expected, strict=True):
        for name in ("loss", "grad_norm"):
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=1e-4)
        for name in CRITIC_NAMES:
            assert mine.values[name] == pytest.approx(theirs.values[name], abs=1e-4), name


def _figures(steps: Sequence) -> list:
    return [replace(each, seconds=0.0).values for each in steps]
