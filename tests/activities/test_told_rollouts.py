"""Each rollout of a step is told of: its advantage, its trained tokens, or why it has none."""

from dataclasses import replace

import numpy as np
import pytest
from test_step_batch import group, rollout, turns

from activities.training.step_batch import step_batch
from activities.training.told_rollouts import with_measured
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Overlong, Std
from mainspring.status import StopReason, Untrained
from mainspring.training.trained_rollouts import KeptSample, StepDetails, TokenGap
from mainspring.trajectories.samples import kept_of
from mainspring.trajectories.turn_rewards import TurnRewards


def test_each_rollout_is_told_with_its_tokens_or_with_the_reason() -> None:
    trainer = TrainerConfig(overlong=Overlong.MASK, max_token_staleness=1, std=Std.NONE)
    batch = step_batch(
        [
            group(
                rollout(0, 1.0, 9, 9, 1),
                rollout(1, 0.0, 9),
                rollout(2, None, 9),
                rollout(3, 0.5, 1, 1),
                rollout(4, 0.0, 9, ended=StopReason.STEP_LIMIT),
                replace(rollout(5, 1.0), calls=[]),
                rollout(6, 0.5, 9),
            )
        ],
        trainer,
        version=9,
    )
    told = batch.rollouts
    assert [each.masked_why for each in told] == [
        None,
        None,
        Untrained.MASKED,
        Untrained.STALE,
        Untrained.OVERLONG,
        Untrained.NO_TOKENS,
        Untrained.ZERO_ADVANTAGE,
    ]
    assert [each.num_trained_tokens for each in told] == [2, 1, 0, 0, 0, 0, 0]
    assert told[0].advantage == pytest.approx(0.5) and told[4].advantage == pytest.approx(-0.5)
    assert told[2].advantage is None and not any(each.is_mean for each in told)
    kept = zip(batch.samples, kept_of(batch.samples), strict=True)
    assert sum(s.num_action_tokens for s, keep in kept if keep) == 3


def test_advantages_of_turns_are_told_by_call_and_as_their_mean() -> None:
    judged = replace(turns(0, 1.25, 2), turn_rewards=TurnRewards(1.0, {0: 0.5, 1: 0.0}))
    other = replace(turns(1, 0.0, 2), turn_rewards=TurnRewards(0.0, {0: -0.5, 1: None}))
    trainer = TrainerConfig(advantage="step_wise", std=Std.NONE)
    batch = step_batch([group(judged, other)], trainer, version=1)
    first, second = batch.rollouts
    for told, sample in zip((first, second), batch.samples, strict=True):
        assert told.is_mean and told.call_advantages is not None
        given = sample.advantages[sample.action_mask]
        assert told.advantage == pytest.approx(given.mean())
        assert [told.call_advantages[n] for n in (0, 0, 1, 1)] == pytest.approx(given.tolist())
        assert told.num_trained_tokens == 4
    assert second.call_advantages == pytest.approx({0: -1.0, 1: 0.0})


def test_a_critic_tells_advantages_afterwards_and_its_warm_up_trains_no_rollout() -> None:
    trainer = TrainerConfig.model_validate(
        {"advantage": "gae", "filter": "none", "critic": {"warmup_steps": 2}, "device": "cpu"}
    )
    groups = [group(turns(0, 1.0, 2), turns(1, 0.0, 2))]
    warm_up = step_batch(groups, trainer, version=1).rollouts
    assert {each.masked_why for each in warm_up} == {Untrained.CRITIC_WARMUP}
    batch = step_batch(groups, trainer, version=2)
    assert [(each.advantage, each.num_trained_tokens) for each in batch.rollouts] == [
        (None, 4),
        (None, 4),
    ]
    given = {"c/g0/0": 0.75, "c/g0/1": -0.25}
    told = with_measured(batch.rollouts, StepDetails(advantages=given), groups, []).rollouts
    assert [(each.advantage, each.is_mean) for each in told] == [(0.75, True), (-0.25, True)]


def test_a_gap_is_told_by_call_and_place_in_its_reply() -> None:
    played = turns(0, 1.0, 3)
    batch = step_batch([group(played, turns(1, 0.0, 3))], TrainerConfig(), version=1)
    sample = batch.samples[0]
    places = [int(place) for place in np.flatnonzero(sample.action_mask)]
    gaps = tuple(TokenGap(sample.rollout, sample.branch, at, -0.5, -0.75) for at in places)
    told = with_measured(batch.rollouts, StepDetails(gaps), [group(played)], []).gaps
    assert [(gap.call, gap.offset) for gap in told] == [
        (call, offset) for call in range(3) for offset in range(2)
    ]
    for gap, at in zip(told, places, strict=True):
        call = played.calls[gap.call]
        assert call.completion_ids[gap.offset] == sample.token_ids[at]
        assert (gap.size, gap.rollout) == (0.25, played.id)


def test_kept_numbers_are_told_by_call_without_those_of_masked_tokens() -> None:
    played = rollout(0, 1.0, 1, 9, 9)
    groups = [group(played, turns(1, 0.0, 2))]
    batch = step_batch(groups, TrainerConfig(max_token_staleness=1), version=9)
    first = batch.samples[0]
    numbers = np.array([-1.0, -2.0], np.float32)
    kept = {0: KeptSample(numbers, numbers + 5)}
    [told] = with_measured(batch.rollouts, StepDetails(kept=kept), groups, batch.samples).kept
    assert first.num_action_tokens == 2 and (told.rollout, told.call) == (played.id, 0)
    assert told.logprobs == pytest.approx([np.nan, -1.0, -2.0], nan_ok=True)
    assert told.entropies == pytest.approx([np.nan, 4.0, 3.0], nan_ok=True)

    of_turns = [group(turns(0, 1.0, 3), turns(1, 0.0, 1))]
    other = step_batch(of_turns, TrainerConfig(), version=1)
    kept = {0: KeptSample(np.arange(6, dtype=np.float32), None)}
    by_call = with_measured(other.rollouts, StepDetails(kept=kept), of_turns, other.samples).kept
    assert [each.logprobs.tolist() for each in by_call] == [[0, 1], [2, 3], [4, 5]]
    assert [(each.call, each.entropies) for each in by_call] == [(0, None), (1, None), (2, None)]
