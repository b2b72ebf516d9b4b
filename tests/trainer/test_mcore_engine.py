"""The mcore engine on CPU under the shim: every layout computes what Hugging Face does."""

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer import rank_jobs
from tests.trainer.ranks import run
from tests.trainer.shards import fused_experts_as_files, mcore_to_hf
from trainer.engines.plain import PlainEngine
from trainer.model.hf_directory import load_weights
from trainer.process.rank import TrainerRank
from trainer.step.mini_batch import MiniBatch
from trainer.step.policy_step import PolicyStep

ALONE: dict[str, Any] = {}
LR = 1e-3
ADAMW = {"lr": LR, "eps": 1e-6, "weight_decay": 0.01}
TP2, PP2, CP2, DP2 = ({f"{kind}_parallel": 2} for kind in ("tensor", "pipeline", "context", "data"))
SP = {"sequence_parallel": True}
QUICK = [
    ALONE,
    TP2 | SP,
    PP2 | DP2,
    CP2 | TP2,
    CP2 | PP2 | {"recompute": "full"},
    TP2 | SP | PP2 | {"recompute": "mlp"},
]


LAYOUTS = [
    layout
    for sizes in itertools.product([{}, TP2], [{}, PP2], [{}, CP2], [{}, DP2])
    if (layout := {name: size for part in sizes for name, size in part.items()}) not in QUICK
]


def name_of(layout: dict[str, Any]) -> str:
    return " ".join(f"{name.split('_')[0]}={value}" for name, value in layout.items()) or "alone"


def by_hand(model, samples, logprobs_of) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients by plain Hugging Face and autograd, one sequence at a time."""
    num_tokens = sum(sample.num_action_tokens for sample in samples)
    total = torch.zeros(())
    for sample in samples:
        mask = torch.from_numpy(sample.action_mask[1:])
        served = torch.from_numpy(sample.logprobs[1:])[mask]
        ratio = (logprobs_of(model, sample)[mask] - served).exp()
        advantages = torch.from_numpy(sample.advantages[1:])[mask]
        total -= torch.min(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages).sum()
    loss = total / num_tokens
    model.zero_grad()
    loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    return float(loss), fused_experts_as_files(grads)


def collected(ranks: list[dict[str, Any]], hf) -> dict[str, torch.Tensor]:
    """Whole gradients under Hugging Face's names, of the ranks that hold each part first."""
    found: dict[str, torch.Tensor] = {}
    for stage in sorted({rank["pp"] for rank in ranks}):
        of_stage = [rank for rank in ranks if rank["pp"] == stage]
        shards = sorted((r for r in of_stage if r["copy"] == 0), key=lambda r: r["tp"])
        parts = [
            {name: torch.from_numpy(grad) for name, grad in rank["grads"].items()}
            for rank in shards
        ]
        for rank in of_stage:
            experts = {n: torch.from_numpy(g) for n, g in rank["grads"].items() if ".experts." in n}
            found |= mcore_to_hf([experts], hf)
        dense = [{n: g for n, g in part.items() if ".experts." not in n} for part in parts]
        found |= mcore_to_hf(dense, hf)
    return found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "layout",
    [*QUICK, *(pytest.param(layout, marks=pytest.mark.long) for layout in LAYOUTS)],
    ids=name_of,
)
def test_loss_and_gradients_equal_hugging_face(
    layout, tied, make_model, make_config, batch, oracle
):
    model, directory = make_model("qwen3", tied=tied)
    samples = [sample for sample in batch if sample.carries_advantage]
    config = make_config(engine="mcore", micro_batch_tokens=64, **layout)
    ranks = run(config.trainer.world_size, rank_jobs.gradients, config, directory, samples)
    loss, expected = by_hand(model, samples, oracle)
    assert {round(rank["loss"], 5) for rank in ranks} == {round(loss, 5)}
    found = collected(ranks, model.config)
    if tied:
        found.pop("lm_head.weight", None)
    assert found.keys() == expected.keys()
    largest = max(float((found[name] - expected[name]).abs().max()) for name in expected)
    assert largest < 1e-5, largest


@pytest.mark.parametrize("layout", [ALONE | DP2 | TP2 | SP, PP2 | CP2, DP2], ids=name_of)
def test_three_steps_equal_hugging_face_adamw(
    layout, make_model, make_config, batch, oracle_step, tmp_path
):
    reference, directory = make_model("qwen3")
    config = make_config(engine="mcore", micro_batch_tokens=64, optimizer=ADAMW, **layout)
    ranks = run(
        config.trainer.world_size, rank_jobs.steps, config, directory, batch, tmp_path / "out"
    )
    model = copy.deepcopy(reference)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.01
    )
    losses = [oracle_step(model, batch, optimizer) for _ in range(3)]
    for metrics in ranks:
        assert metrics[0].loss == pytest.approx(losses[0], abs=1e-6)
        assert [step.loss for step in metrics] == pytest.approx(losses, abs=1e-4)
        assert len({step.grad_norm for step in metrics}) == 3
    found = load_weights(tmp_path / "out")
    expected = model.state_dict()
    gap = max(float((found[name] - expected[name]).abs().max()) for name in found)
    assert gap < 0.05 * LR, gap


def test_it_equals_the_plain_engine(make_model, make_config, batch, tmp_path):
    """Also in samples without advantage, and with the log-probs of every token of the batch."""
    _, directory = make_model("qwen3")
    options = {"micro_batch_tokens": 64, "optimizer": ADAMW, "entropy_coef": 0.01}
    plain = TrainerRank(make_config(**options), directory)
    config = make_config(engine="mcore", **options, **CP2, **PP2)
    [first, *_] = run(4, rank_jobs.logprobs, config, directory, batch)
    shares = run(4, rank_jobs.logprobs, config, directory, batch)
    assert {index for share in shares for index in share} == set(range(len(batch))), first.keys()
    for index, expected in plain.logprobs(batch).items():
        found = [share[index] for share in shares if index in share]
        assert len(found) == 2  # the context-parallel ranks of the last stage
        assert max(float(np.abs(each - expected).max()) for each in found) < 1e-5
    mine = [plain.train_step(batch, step=step, current_version=0) for step in range(3)]
    plain.export_hf(tmp_path / "plain")
    theirs = run(4, rank_jobs.steps, config, directory, batch, tmp_path / "mcore")[-1]
    for one, other in zip(mine, theirs, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-5)
        assert one.grad_norm == pytest.approx(other.grad_norm, abs=1e-5)
        assert one.entropy == pytest.approx(other.entropy, abs=1e-5)
        assert one.num_gap_tokens == other.num_gap_tokens
        assert one.logprob_gap_mean == pytest.approx(other.logprob_gap_mean, abs=1e-5)
    a, b = load_weights(tmp_path / "plain"), load_weights(tmp_path / "mcore")
    assert max(float((a[name] - b[name]).abs().max()) for name in a) < 0.05 * LR


@pytest.mark.parametrize("loss", ["dual_clip", "cispo", "gspo"])
def test_every_loss_has_the_plain_engines_gradient(loss, make_model, make_config, batch):
    """Also one that compares whole sequences, which context parallelism cuts."""
    model, directory = make_model("qwen3")
    samples = [sample for sample in batch if sample.carries_advantage]
    options = {"loss": loss, "micro_batch_tokens": 64, "entropy_coef": 0.01}
    plain = make_config(**options)
    rank = TrainerRank(plain, directory)
    optimizer = rank._engine.optimizer(plain.trainer.optimizer)
    step = PolicyStep(
        plain, rank._engine, optimizer, rank._processes, loss=rank._loss, reference=None
    )
    figures, _ = step._accumulate(MiniBatch(samples), 0)
    assert isinstance(rank._engine, PlainEngine)
    grads = {name: p.grad for name, p in rank._engine._model.named_parameters()}
    expected = mcore_to_hf([grads], model.config)
    ranks = run(
        4,
        rank_jobs.gradients,
        make_config(engine="mcore", **options, **CP2, **TP2, **SP),
        directory,
        samples,
    )
    assert ranks[0]["loss"] == pytest.approx(figures.loss, abs=1e-6)
    found = collected(ranks, model.config)
    assert max(float((found[n] - expected[n]).abs().max()) for n in expected) < 1e-5
    assert max(float(grad.abs().max()) for grad in expected.values()) > 1e-3


@pytest.mark.parametrize("layout", [ALONE, {"expert_parallel": 2} | DP2], ids=name_of)
def test_experts_equal_hugging_face(layout, make_model, make_config, batch, oracle, tmp_path):
    model, directory = make_model("qwen3_moe", tied=False)
    samples = [sample for sample in batch if sample.carries_advantage]
    config = make_config(engine="mcore", micro_batch_tokens=64, optimizer=ADAMW, **layout)
    ranks = run(config.trainer.world_size, rank_jobs.gradients, config, directory, samples)
    loss, expected = by_hand(model, samples, oracle)
    assert ranks[0]["loss"] == pytest.approx(loss, abs=1e-5)
    found = collected(ranks, model.config)
    assert found.keys() == expected.keys()
    assert max(float((found[n] - expected[n]).abs().max()) for n in expected) < 1e-5
    run(config.trainer.world_size, rank_jobs.steps, config, directory, batch, tmp_path / "out")
    read = type(model).from_pretrained(tmp_path / "out")  # transformers finds every weight
    assert any(
        not torch.equal(new, old)
        for new, old in zip(read.parameters(), model.parameters(), strict=True)
    )


def test_bfloat16_is_close_and_its_weights_move_at_a_small_rate(
    make_model, make_config, batch, tmp_path
):
    """One of 1e-6 vanishes in bfloat16 unless the optimizer keeps float32 copies."""
    _, directory = make_model("qwen3")
    options = {"engine": "mcore", "dtype": "bfloat16", "optimizer": ADAMW | {"lr": 1e-6}}
    config = make_config(**options, **TP2, **SP)
    plain = TrainerRank(make_config(), directory).logprobs(batch)
    rounded = run(2, rank_jobs.logprobs, config, directory, batch)[0]
    differences = np.concatenate(
        [(rounded[n] - plain[n])[batch[n].action_mask] for n in range(len(batch))]
    )
    assert 0 < float((np.expm1(differences) - differences).mean()) < 1e-3
    metrics = run(2, rank_jobs.steps, config, directory, batch, tmp_path / "out")[0]
    assert all(np.isfinite(step.grad_norm) and step.grad_norm > 0 for step in metrics)
    before, after = load_weights(directory), load_weights(tmp_path / "out")
    moved = [float((after[n] != before[n].bfloat16().float()).float().mean()) for n in before]
    assert max(moved) > 0.001, moved


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_is_loaded_under_another_layout(
    dtype, make_model, make_config, batch, tmp_path
):
    """With its optimizer: the next step is the one that would have followed."""
    _, directory = make_model("qwen3")
    options = {"engine": "mcore", "dtype": dtype, "optimizer": ADAMW, "micro_batch_tokens": 64}
    saved = make_config(**options, **TP2, **DP2)
    [expected, *_] = run(4, rank_jobs.saved_after_two_steps, saved, directory, batch, tmp_path)
    for layout, folder, bound in ((TP2 | DP2, "again12", 0.0), (PP2, "again21", 1e-6)):
        config = make_config(**options, **layout)
        found = run(
            config.trainer.world_size,
            rank_jobs.step_after_loading,
            config,
            directory,
            batch,
            tmp_path,
        )[0]
        if dtype == "bfloat16" and bound:
            bound = 1e-3  # sums in another order move a weight by one step of bfloat16
        assert found.loss == pytest.approx(expected.loss, abs=max(bound, 1e-12))
        one, other = load_weights(tmp_path / "third"), load_weights(tmp_path / folder)
        assert max(float((one[name] - other[name]).abs().max()) for name in one) <= bound
