"""A step's batch: its figures over tokens, and tokens that are too old for the loss."""

from dataclasses import replace

import numpy as np
import pytest

from activities.training.step_batch import step_batch
from infra.db.training.batches import BatchGroup, BatchRollout
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Overlong, Std
from mainspring.ids import GroupId, RolloutId
from mainspring.status import StopReason
from mainspring.training.step_metrics import TAKEN_NAMES
from mainspring.trajectories.turn_rewards import TurnRewards
from mainspring.trajectories.turns import Call, VersionSpan


def rollout(
    index: int, reward: float | None, *versions: int, ended: StopReason = StopReason.SUBMITTED
) -> BatchRollout:
    """One reply of a token for each version, after a prompt of three."""
    reply = Call(
        number=0,
        parent=None,
        prompt_start=0,
        prompt_ids=(1, 2, 3),
        completion_ids=tuple(range(10, 10 + len(versions))),
        logprobs=(-0.5,) * len(versions),
        spans=tuple(VersionSpan(version, n, n + 1) for n, version in enumerate(versions)),
        text="",
        finish_reason="stop",
    )
    return BatchRollout(
        id=RolloutId(f"c/g0/{index}"),
        reward=reward,
        calls=[reply],
        stop_reason=ended,
    )


def turns(index: int, reward: float | None, num: int) -> BatchRollout:
    """A line of turns of two tokens each, after prompts of one."""
    calls = [
        Call(
            number=n,
            parent=n - 1 if n else None,
            prompt_start=3 * n,
            prompt_ids=(1,),
            completion_ids=(10, 11),
            logprobs=(-0.5, -0.5),
            spans=(VersionSpan(1, 0, 2),),
            text="",
            finish_reason="stop",
        )
        for n in range(num)
    ]
    return BatchRollout(id=RolloutId(f"c/g0/{index}"), reward=reward, calls=calls)


def group(*rollouts: BatchRollout) -> BatchGroup:
    return BatchGroup(GroupId("c/g0"), list(rollouts))


OLD = group(rollout(0, 1.0, 9, 9, 8, 8), rollout(1, 0.0, 6, 7, 9, 3), rollout(2, None, 0, 0))


def test_staleness_is_a_distribution_over_tokens() -> None:
    figures = step_batch([OLD], TrainerConfig(), version=9).figures
    assert figures["staleness_mean"] == (0 + 0 + 1 + 1 + 3 + 2 + 0 + 6) / 8
    assert figures["staleness_max"] == 6
    shares = [figures[f"staleness_{age}"] for age in ("0", "1", "2", "3plus")]
    assert shares == [3 / 8, 2 / 8, 1 / 8, 2 / 8]
    assert "num_stale_tokens_masked" not in figures


def test_tokens_that_are_too_old_are_context_and_not_trained_on() -> None:
    free = step_batch([OLD], TrainerConfig(), version=9)
    bounded = step_batch([OLD], TrainerConfig(max_token_staleness=1), version=9)
    assert bounded.figures["num_stale_tokens_masked"] == 3
    assert bounded.figures["staleness_max"] == 6  # of what was sampled, not of what is left
    young, old = bounded.samples
    assert young is not free.samples[0] and (young.action_mask == free.samples[0].action_mask).all()
    assert (old.token_ids == free.samples[1].token_ids).all()
    assert old.action_mask.tolist() == [False] * 5 + [True, False]
    assert old.versions.tolist() == [-1] * 5 + [9, -1]
    assert np.flatnonzero(old.logprobs).tolist() == [5]
    assert np.flatnonzero(old.advantages).tolist() == [5]
    assert old.advantages[5] == free.samples[1].advantages[5]
    assert bounded.digest != free.digest
    assert bounded.figures.keys() <= TAKEN_NAMES
    assert step_batch([OLD], TrainerConfig(max_token_staleness=0), version=3).samples


def test_without_tokens_nothing_is_measured() -> None:
    masked = group(rollout(0, None, 1), rollout(1, None, 1))
    batch = step_batch([masked], TrainerConfig(), version=2)
    assert batch.samples == []
    assert batch.figures["reward_mean"] is None
    assert batch.figures["staleness_max"] is batch.figures["staleness_0"] is None
    assert batch.figures["mixed_groups"] == 0


def test_rewards_that_differ_by_rounding_are_no_mixed_group() -> None:
    flat = group(rollout(0, 0.1 + 0.2, 1), rollout(1, 0.3, 1))
    batch = step_batch([flat], TrainerConfig(), version=1)
    assert batch.figures["mixed_groups"] == 0
    assert not any(sample.carries_advantage for sample in batch.samples)


def test_the_same_batch_has_the_same_digest_and_another_one_does_not() -> None:
    again = group(*OLD.rollouts)
    assert step_batch([OLD], TrainerConfig(), version=9).digest == (
        step_batch([again], TrainerConfig(), version=9).digest
    )
    other = group(rollout(0, 1.0, 9, 9, 8, 7), *OLD.rollouts[1:])
    assert step_batch([OLD], TrainerConfig(), version=9).digest != (
        step_batch([other], TrainerConfig(), version=9).digest
    )


@pytest.mark.parametrize("ended", list(StopReason))
def test_what_a_limit_cut_off_is_masked_and_still_moves_its_group(ended: StopReason) -> None:
    group_of = group(rollout(0, 1.0, 1), rollout(1, 0.0, 1), rollout(2, 0.5, 1, ended=ended))
    kept = step_batch([group_of], TrainerConfig(), version=1)
    masked = step_batch([group_of], TrainerConfig(overlong=Overlong.MASK), version=1)
    cut = ended in (
        StopReason.STEP_LIMIT,
        StopReason.CONTEXT_FULL,
        StopReason.WALL_TIME,
        StopReason.REQUEST_RATE,
        StopReason.STRAGGLER,
        StopReason.COST_LIMIT,
    )
    whole = group(rollout(0, 1.0, 1), rollout(1, 0.0, 1))
    assert "num_overlong_masked" not in kept.figures
    assert masked.figures["num_overlong_masked"] == cut
    assert masked.figures.keys() <= TAKEN_NAMES
    assert masked.figures["reward_mean"] == 0.5
    # the others have the advantages that they had, which the rewards of all three give
    assert [s.advantages[-1] for s in masked.samples[:2]] == [
        s.advantages[-1] for s in kept.samples[:2]
    ]
    assert (
        masked.samples[0].advantages[-1]
        != (step_batch([whole], TrainerConfig(), version=1).samples[0].advantages[-1])
    )
    assert len(masked.samples) == 3 and not (cut and masked.samples[2].carries_advantage)
    high = group(rollout(0, 1.0, 1), rollout(1, 0.0, 1), rollout(2, 2.0, 1, ended=ended))
    assert step_batch([high], TrainerConfig(overlong=Overlong.MASK), version=1).samples[
        2
    ].carries_advantage is (not cut)


def test_an_estimator_of_the_batch_sees_all_groups() -> None:
    groups = [group(rollout(0, 1.0, 1), rollout(1, 1.0, 1)), group(rollout(2, 0.0, 1))]
    found = step_batch(groups, TrainerConfig(advantage="reinforce_plus_plus"), version=1)
    solved, also, failed = (float(s.advantages[-1]) for s in found.samples)
    assert solved == also == pytest.approx((1 - 2 / 3) / (1 / 3) ** 0.5)
    assert failed == pytest.approx(-2 / 3 / (1 / 3) ** 0.5)


def test_step_wise_advantages_reach_the_tokens_of_their_turns() -> None:
    of_all = group(turns(0, 1.0, 2), turns(1, 0.0, 3), turns(2, None, 2), turns(3, 0.0, 1))
    trainer = TrainerConfig(advantage="step_wise", std=Std.NONE)
    long, longest, short = step_batch([of_all], trainer, version=1).samples
    first = np.float32(1 / 3)
    assert long.advantages == pytest.approx([0, 2 / 3, 2 / 3, 0, 0.5, 0.5])
    assert longest.advantages == pytest.approx([0, -first, -first, 0, -0.5, -0.5, 0, 0, 0])
    assert short.advantages == pytest.approx([0, -first, -first])
    flat = group(turns(0, 1.0, 2), turns(1, 1.0, 2))
    assert not any(s.carries_advantage for s in step_batch([flat], trainer, version=1).samples)
    cut = replace(of_all.rollouts[0], stop_reason=StopReason.STEP_LIMIT)
    masked = step_batch(
        [group(cut, *of_all.rollouts[1:])],
        trainer.model_copy(update={"overlong": Overlong.MASK}),
        version=1,
    )
    assert not masked.samples[0].carries_advantage
    assert (masked.samples[1].advantages == longest.advantages).all()


def test_rewards_of_turns_reach_the_tokens_of_their_turns() -> None:
    """The reward of a rollout is 0.5 times the mean of its turns' scores, and its outcome."""
    judged = replace(turns(0, 1.25, 2), turn_rewards=TurnRewards(1.0, {0: 0.5, 1: 0.0}))
    other = replace(turns(1, 0.0, 2), turn_rewards=TurnRewards(0.0, {0: -0.5, 1: None}))
    trainer = TrainerConfig(advantage="step_wise", std=Std.NONE)
    first, second = step_batch([group(judged, other)], trainer, version=1).samples
    assert first.advantages == pytest.approx([0, 1.0, 1.0, 0, 1.0, 1.0])  # 1.5 and -0.5; alone
    assert second.advantages == pytest.approx([0, -1.0, -1.0, 0, 0, 0])
    both = step_batch([group(judged, other)], TrainerConfig(std=Std.NONE), version=1).samples
    assert both[0].advantages == pytest.approx([0, 0.625, 0.625, 0, 0.625, 0.625])

    with_critic = TrainerConfig.model_validate(
        {"advantage": "gae", "filter": "none", "critic": {}, "device": "cpu"}
    )
    first, second = step_batch([group(judged, other)], with_critic, version=1).samples
    assert (first.reward, first.turn_rewards) == (1.0, ((2, 0.5), (5, 0.0)))
    assert (second.reward, second.turn_rewards) == (0.0, ((2, -0.5),))
    plain = step_batch([group(turns(0, 1.0, 2), turns(1, 0.0, 2))], with_critic, version=1)
    assert [sample.turn_rewards for sample in plain.samples] == [(), ()]
    assert plain.digest != step_batch([group(judged, other)], with_critic, version=1).digest


def test_a_critic_gets_rewards_instead_of_advantages() -> None:
    trainer = TrainerConfig.model_validate(
        {"advantage": "gae", "filter": "none", "critic": {}, "device": "cpu"}
    )
    of_all = group(
        rollout(0, 0.0, 9, 9), rollout(1, None, 9), rollout(2, 1.0, 8, 9), turns(3, 0.5, 3)
    )
    batch = step_batch([of_all], trainer, version=9)
    assert [sample.reward for sample in batch.samples] == [0.0, 1.0, 0.5]
    assert all(s.carries_advantage and not s.advantages.any() for s in batch.samples)
    assert all(s.reward is None for s in step_batch([of_all], TrainerConfig(), version=9).samples)
    other = group(rollout(0, 0.25, 9, 9), *of_all.rollouts[1:])
    assert step_batch([other], trainer, version=9).digest != batch.digest
    # what a limit cut off is compared with the engine alone, and so is what is too old
    bounded = trainer.model_copy(update={"overlong": Overlong.MASK, "max_token_staleness": 0})
    cut = replace(of_all.rollouts[0], stop_reason=StopReason.STEP_LIMIT)
    masked, young, old = step_batch([group(cut, *of_all.rollouts[1:])], bounded, version=9).samples
    assert masked.reward is None and not masked.carries_advantage
    assert young.reward == 1.0 and young.num_action_tokens == 1 and young.carries_advantage
    assert old.reward == 0.5 and not old.carries_advantage


STALE = TrainerConfig(max_token_staleness=1)


@pytest.mark.parametrize(
    ("rollouts", "trainer", "reason", "is_replaced"),
    [
        ((rollout(0, 1.0, 1), rollout(1, 0.0, 1)), STALE, "2 tokens are older than", True),
        ((rollout(0, None, 1), rollout(1, None, 1)), STALE, "none of its rollouts has", True),
        (
            (rollout(0, 1.0, 9, ended=StopReason.STEP_LIMIT), rollout(1, 1.0, 9)),
            TrainerConfig(overlong=Overlong.MASK, filter="none"),
            'trainer.advantage = "grpo" gave every rollout 0',
            False,
        ),
        (
            (rollout(0, 1.0, 9, ended=StopReason.WALL_TIME),),
            TrainerConfig(overlong=Overlong.MASK, advantage="raft"),
            "1 rollouts were cut off by a limit",
            True,
        ),
        # what has an advantage is too old, and what is young has none
        (
            (rollout(0, 1.0, 1), rollout(1, 0.0, 9)),
            TrainerConfig(advantage="raft", max_token_staleness=1),
            "1 tokens are older than",
            True,
        ),
        (
            (rollout(0, 0.0, 9), rollout(1, 0.0, 9)),
            TrainerConfig(advantage="raft", filter="none"),
            "gave every rollout 0",
            False,
        ),
        (
            (turns(0, 1.0, 2), turns(1, 0.0, 2)),
            TrainerConfig(advantage="step_wise", max_token_staleness=1),
            "8 tokens are older than",
            True,
        ),
        (
            (rollout(0, 1.0, 1), rollout(1, 1.0, 2)),
            TrainerConfig.model_validate(
                {"advantage": "gae", "critic": {}, "device": "cpu", "max_token_staleness": 0}
            ),
            "2 tokens are older than",
            True,
        ),
    ],
)
def test_why_nothing_of_a_batch_can_be_trained(
    rollouts: tuple[BatchRollout, ...], trainer: TrainerConfig, reason: str, is_replaced: bool
) -> None:
    found = step_batch([group(*rollouts)], trainer, version=9).nothing
    assert found is not None and reason in found.reason
    assert found.is_replaced is is_replaced


def test_of_a_batch_with_one_trained_token_something_can_be_trained() -> None:
    found = step_batch([group(rollout(0, 1.0, 1, 9), rollout(1, 0.0, 1, 1))], STALE, version=9)
    assert found.nothing is None
    assert step_batch([OLD], TrainerConfig(), version=9).nothing is None
