"""Demand, time of a step and changes that fit, against numbers computed by hand."""

from typing import Any

import pytest

from mainspring.planning.assumptions import Given
from mainspring.planning.changes import changes_that_fit
from mainspring.planning.plan import plan_of
from mainspring.planning.step_time import Stage
from tests.mainspring.planning.campaigns import MCORE, campaign, model

STEP = {"groups_per_step": 16, "group_size": 8, "tensor_parallel": 4, "sequence_parallel": True}
GIVEN = Given(
    tokens_per_rollout=8000,
    turns_per_rollout=10,
    action_share=0.25,
    command_s=2.0,
    gpu_tflops=1000.0,
    mfu=0.4,
    decode_tokens_per_s=1000.0,
    disk_gb_per_s=2.0,
)


def plan(given: Given = GIVEN, **trainer: Any) -> Any:
    config = campaign(MCORE | STEP | trainer, max_context=16384)
    return plan_of(config, model("qwen3-8b"), given)


def test_rollouts_sandboxes_and_tokens() -> None:
    demand = plan(max_staleness=1).demand
    assert demand.rollouts_per_step == 128
    assert demand.rollouts_in_flight == 256
    assert demand.sandboxes == 256 + 32  # and those of an evaluation
    assert demand.sandbox_memory_bytes == 288 * 1024 * 2**20
    assert demand.most_tokens_per_step == 128 * 16384
    assert demand.tokens_per_step == 128 * 8000
    assert demand.action_tokens_per_step == 128 * 2000
    assert demand.kv_tokens == 288 * 4000
    assert demand.most_kv_tokens == 288 * 16384


def test_a_bound_on_sandboxes_counts() -> None:
    config = campaign(MCORE | STEP, max_context=16384)
    sandbox = config.sandbox.model_copy(update={"max_open": 100})
    config = config.model_copy(update={"sandbox": sandbox})
    assert plan_of(config, model("qwen3-8b"), GIVEN).demand.sandboxes == 100


def test_a_sample_for_each_reply_has_all_that_came_before_it() -> None:
    whole, split = plan(), plan(samples="call")
    turns = whole.assumed.turns_per_rollout
    assert split.demand.tokens_per_step == whole.demand.tokens_per_step * (turns + 1) // 2
    assert split.demand.action_tokens_per_step == whole.demand.action_tokens_per_step
    assert split.demand.kv_tokens == whole.demand.kv_tokens
    assert split.demand.most_tokens_per_step > whole.demand.most_tokens_per_step


def test_a_checkpoint_has_weights_optimizer_and_export() -> None:
    demand = plan(keep_checkpoints=2).demand
    # 2 + 12 bytes of each parameter, 2 of the export, and the files beside them.
    assert demand.checkpoint_bytes == 16 * 8_190_735_360 + 2**20
    assert demand.disk_bytes == 3 * demand.checkpoint_bytes


def test_the_time_of_a_step_follows_from_the_assumptions() -> None:
    time = plan().time
    tokens, wanted = 1_024_000, 256_000
    layers = 36 * (41_943_040 + 150_994_944 + 8_448)
    output = 151936 * 4096
    flops = 6 * layers * tokens + 6 * 36 * 4096 * 8000 * tokens + 8 * output * wanted
    assert time.flops == pytest.approx(flops)
    assert time.seconds_of[Stage.TRAIN] == pytest.approx(flops / (4 * 1e15 * 0.4))
    assert time.seconds_of[Stage.GENERATE] == pytest.approx(256.0)
    assert time.seconds_of[Stage.COMMANDS] == pytest.approx(128 * 10 * 2 / 288)
    assert time.seconds_of[Stage.CHECKPOINT] == pytest.approx(16 * 8.190735 / 2, rel=1e-3)
    assert time.bottleneck is Stage.GENERATE
    assert time.total_s == pytest.approx(256.0)


def test_without_staleness_rollouts_and_training_take_turns() -> None:
    time = plan(max_staleness=0).time
    assert time.total_s == time.rollout_s + time.trainer_s


def test_recomputation_costs_operations_and_stages_wait_for_each_other() -> None:
    usual, again = plan().time, plan(recompute="full").time
    assert 1.25 < again.flops / usual.flops < 1.34
    piped = plan(pipeline_parallel=2)
    assert piped.num_micro_batches == 63  # 1,024,000 tokens in micro-batches of 16,384
    assert piped.time.bubble == pytest.approx(1 / 64)


def test_a_micro_batch_is_no_larger_than_a_step() -> None:
    small = plan(groups_per_step=1, group_size=2, micro_batch_tokens=1_000_000)
    assert small.micro_batch.num == 2 * 16384
    assert plan(micro_batch_tokens=1024).micro_batch.num == 16384  # a sequence is never cut


def test_every_assumption_has_a_source() -> None:
    given, assumed = plan().assumed, plan(Given()).assumed
    assert set(given.source.values()) == {"given"}
    assert assumed.source["tokens_per_rollout"] == "half of max_context"
    assert "H100" in assumed.source["peak_flops_per_rank"]
    assert assumed.tokens_per_rollout == 8192


def test_changes_that_are_proposed_fit_and_are_the_smallest() -> None:
    config = campaign(MCORE | {"tensor_parallel": 2}, max_context=32768)
    shape, gpu_bytes = model("qwen3-8b"), 80_000_000_000
    assert plan_of(config, shape, Given()).lacks_bytes(gpu_bytes) > 0
    changes = changes_that_fit(config, shape, Given(), gpu_bytes)
    assert 1 <= len(changes) <= 3
    assert changes[0].num_ranks == 2, "no more GPUs where a setting suffices"
    for change in changes:
        trainer = MCORE | {"tensor_parallel": 2} | change.fields
        again = plan_of(campaign(trainer, max_context=32768), shape, Given())
        assert again.lacks_bytes(gpu_bytes) == 0
        assert again.largest.peak.num_bytes == change.peak_bytes
        assert again.config.trainer.world_size == change.num_ranks
    assert "=" in str(changes[0])


def test_nothing_is_proposed_where_nothing_fits() -> None:
    config = campaign(MCORE, max_context=32768)
    assert changes_that_fit(config, model("qwen3-32b"), Given(), 4_000_000_000) == []
