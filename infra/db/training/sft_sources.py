"""Which stored rollouts a supervised run takes of a campaign, and their samples, one at a time.

Invariants: the same store gives the same choice in the same order; tokens come as they were served;
a masked rollout, or one without tokens, is never chosen. Counts tell where the others were left.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sqlalchemy import select

from infra.db.database import Database
from infra.db.tables.models import GroupRow, RolloutRow
from infra.db.training.batches import calls_of, trained_of
from mainspring.config.sft import SftSource
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import Player, RolloutPhase, Verdict, is_masked
from mainspring.trajectories.imitation import to_imitate
from mainspring.trajectories.packed_call import TokenCall
from mainspring.trajectories.samples import Sample, samples_of


@dataclass(slots=True)
class Chosen:
    """Counts of the rollouts of one source."""

    num_stored: int = 0
    left: Counter[str] = field(default_factory=Counter[str])
    """How many were left out, by the reason."""
    num_chosen: int = 0

    def __str__(self) -> str:
        reasons = [f"{number} {why}" for why, number in self.left.items() if number]
        left = f" ({', '.join(reasons)})" if reasons else ""
        return f"{self.num_chosen} of {self.num_stored} rollouts{left}"


async def samples(
    db: Database, campaign: CampaignId, source: SftSource, chosen: Chosen
) -> AsyncIterator[Sample]:
    """Samples of the rollouts that `source` asks for; `chosen` is filled in on the way. Raises
    BrokenTrajectory."""
    per_task: Counter[str] = Counter()
    for id, epoch, task in await _candidates(db, campaign, source, chosen):
        if source.max_per_task is not None and per_task[task] >= source.max_per_task:
            chosen.left["beyond max_per_task"] += 1
            continue
        calls, untrained = await calls_of(db, id, epoch)
        if not calls or not all(len(call.completion_ids) for call in calls):
            chosen.left["without tokens"] += 1
            continue
        if not _is_within(calls, source):
            chosen.left["of other policy versions"] += 1
            continue
        per_task[task] += 1
        chosen.num_chosen += 1
        trained = trained_of(calls, untrained)
        for sample in await asyncio.to_thread(samples_of, id, calls, trained=trained):
            if sample.num_action_tokens:
                yield to_imitate(id, sample.branch, sample.token_ids, sample.action_mask)


async def _candidates(
    db: Database, campaign: CampaignId, source: SftSource, chosen: Chosen
) -> list[tuple[RolloutId, int, str]]:
    """Id, epoch and task of those whose end is as it is asked for: the best first, then the
    earliest."""
    columns = (
        RolloutRow.id,
        RolloutRow.epoch,
        RolloutRow.task_id,
        RolloutRow.player,
        RolloutRow.phase,
        RolloutRow.stop_reason,
        RolloutRow.verdict,
        RolloutRow.reward,
    )
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(*columns)
            .join(GroupRow, GroupRow.id == RolloutRow.group_id)
            .where(RolloutRow.campaign_id == campaign)
            .order_by(
                RolloutRow.reward.desc().nulls_last(),
                GroupRow.created_at,
                GroupRow.id,
                RolloutRow.sample_index,
            )
        )
        candidates = rows.all()
    chosen_rollouts: list[tuple[RolloutId, int, str]] = []
    for row in candidates:
        chosen.num_stored += 1
        if row.player is not Player.POLICY:
            chosen.left["not played by a policy"] += 1
        elif row.phase is not RolloutPhase.DONE:
            chosen.left["not ended"] += 1
        elif is_masked(row.stop_reason, row.verdict):
            chosen.left["masked"] += 1
        elif source.min_reward is None and row.verdict is not Verdict.RESOLVED:
            chosen.left["not resolved"] += 1
        elif source.min_reward is not None and (row.reward or 0.0) < source.min_reward:
            chosen.left[f"with a reward below {source.min_reward:g}"] += 1
        else:
            chosen_rollouts.append((RolloutId(row.id), row.epoch, row.task_id))
    return chosen_rollouts


def _is_within(calls: list[TokenCall], source: SftSource) -> bool:
    lowest, highest = source.min_version, source.max_version
    versions = {span.version for call in calls for span in call.spans}
    return not (
        (lowest is not None and any(version < lowest for version in versions))
        or (highest is not None and any(version > highest for version in versions))
    )
