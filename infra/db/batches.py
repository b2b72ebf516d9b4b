"""What the trainer reads: groups with the rewards and every token of their rollouts.

Invariant: reading a planned step's batch gives the same at any time, because closed groups do not
change. Three queries however many groups.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, and_, select

from infra.db import steps
from infra.db.database import Database
from infra.db.models import CallRow, RolloutRow
from infra.db.turns import CALL
from mainspring.ids import CampaignId, GroupId, RolloutId
from mainspring.status import StopReason
from mainspring.trajectories.turns import Call


@dataclass(frozen=True, slots=True)
class BatchRollout:
    id: RolloutId
    reward: float | None
    """None: masked."""
    calls: list[Call]
    """Of its last epoch, by number."""
    stop_reason: StopReason | None = None


@dataclass(frozen=True, slots=True)
class BatchGroup:
    id: GroupId
    rollouts: list[BatchRollout]
    """In sample order."""


async def load_batch(database: Database, campaign: CampaignId, step: int) -> list[BatchGroup]:
    """The groups of a planned step, in batch order; empty when it was not planned."""
    return await load_groups(database, await steps.step_groups(database, campaign, step))


async def load_groups(database: Database, groups: list[GroupId]) -> list[BatchGroup]:
    """In the order given. Unknown groups are left out."""
    async with database.transaction() as connection:
        rollout_rows = await connection.execute(
            select(RolloutRow.group_id, RolloutRow.id, RolloutRow.reward, RolloutRow.stop_reason)
            .where(RolloutRow.group_id.in_(groups))
            .order_by(RolloutRow.sample_index)
        )
        turn_rows = await connection.execute(
            select(CallRow.rollout_id, *CALL)
            .join(
                RolloutRow,
                and_(
                    RolloutRow.id == CallRow.rollout_id,
                    RolloutRow.epoch == CallRow.epoch,
                ),
            )
            .where(RolloutRow.group_id.in_(groups))
            .order_by(CallRow.rollout_id, CallRow.number)
        )
    # Rows are decoded as they are read: seconds for a large batch, which must not stop the loop.
    return await asyncio.to_thread(_assemble, groups, rollout_rows, turn_rows)


def _assemble(
    groups: list[GroupId], rollout_rows: Iterable[Row[Any]], turn_rows: Iterable[Row[Any]]
) -> list[BatchGroup]:
    turns: defaultdict[str, list[Call]] = defaultdict(list)
    for rollout, *fields in turn_rows:
        turns[rollout].append(Call(*fields))
    rollouts: defaultdict[str, list[BatchRollout]] = defaultdict(list)
    for group, id, reward, stop_reason in rollout_rows:
        rollouts[group].append(BatchRollout(id, reward, turns[id], stop_reason))
    return [BatchGroup(id, rollouts[id]) for id in groups if id in rollouts]
