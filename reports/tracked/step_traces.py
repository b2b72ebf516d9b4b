"""Traces of a step's rollouts for trackers that show such: which ones, and what they hold.

Invariants: which rollouts of a step are traced follows from the store alone; one step is read at a
time, one rollout after the other, so that a batch of any size takes little memory.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from infra.db.database import Database
from infra.db.reading import trained_steps
from infra.db.runs import campaigns
from mainspring.config.run import RunConfig
from mainspring.ids import CampaignId, RolloutId
from mainspring.training.tracking import (
    TRACES,
    PointId,
    TracedStep,
    TrackedModel,
    milliseconds,
)
from mainspring.trajectories.spans import Trace
from reports.tracked import rollout_trace


@dataclass(frozen=True, slots=True)
class StepTraces:
    """Reads `num_rollouts` of each step."""

    num_rollouts: int

    async def ids(self, database: Database, campaign: CampaignId) -> list[PointId]:
        async with database.snapshot() as connection:
            times = await trained_steps.times(connection, campaign)
        return [PointId(TRACES, step, milliseconds(time)) for step, time in times]

    async def read(
        self, database: Database, campaign: CampaignId, ids: Sequence[PointId]
    ) -> list[TracedStep]:
        """Those of `ids` that are still there."""
        there = set(await self.ids(database, campaign))
        record = await campaigns.get(database, campaign)
        model = record.config.policy.model if isinstance(record.config, RunConfig) else ""
        tracked = TrackedModel(record.uid, model)
        steps: list[TracedStep] = []
        for point in ids:
            if point not in there:
                continue
            async with database.snapshot() as connection:
                rewards = await trained_steps.rewards(connection, campaign, point.step)
            traces: list[Trace] = []
            for rollout in chosen_rollouts(rewards, self.num_rollouts):
                played = await rollout_trace.read(database, rollout)
                # Texts of megabytes must not hold up the heartbeats of a step.
                trace = await asyncio.to_thread(rollout_trace.trace_of, played, tracked)
                traces.append(trace)
            steps.append(TracedStep(point, tuple(traces)))
        return steps


def chosen_rollouts(
    rewards: Sequence[tuple[RolloutId, float | None]], num_rollouts: int
) -> list[RolloutId]:
    """In turn the rollout of the highest reward, that of the lowest, and a masked one (None), until
    there are `num_rollouts`, or no others. Equal rewards: in the order given."""
    scored = [(reward, rollout) for rollout, reward in rewards if reward is not None]
    by_reward = deque(rollout for _, rollout in sorted(scored, key=lambda each: -each[0]))
    masked = deque(rollout for rollout, reward in rewards if reward is None)
    chosen: list[RolloutId] = []
    while by_reward or masked:
        if by_reward:
            chosen.append(by_reward.popleft())
        if by_reward:
            chosen.append(by_reward.pop())
        if masked:
            chosen.append(masked.popleft())
    return chosen[:num_rollouts]
