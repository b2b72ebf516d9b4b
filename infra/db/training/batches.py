"""Batches that the trainer reads: groups with the rewards and every token of their rollouts.

Invariant: reading a planned step's batch gives the same at any time, because closed groups do not
change. A batch may hold gigabytes: it is read in pages of a few rollouts, so that neither a page's
arrival nor its decoding stops the event loop, and tokens stay packed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, exists, func, select, tuple_, type_coerce

from infra.db.database import Database
from infra.db.programs import branch_choice
from infra.db.tables.columns import FloatArray, IntArray
from infra.db.tables.models import CallRow, RolloutRow, StepGroupRow
from infra.db.tables.rollout_ends import SCORED
from infra.db.training import steps
from mainspring.ids import CampaignId, GroupId, RolloutId
from mainspring.status import StopReason
from mainspring.trajectories.packed_call import PackedCall, TokenCall
from mainspring.trajectories.turn_rewards import TurnRewards

PAGE_ROLLOUTS = 16
"""Rollouts of a page: of 32k tokens each 3 MB, arriving in some milliseconds; of 256k tenfold."""
_CALL = (
    CallRow.number,
    CallRow.parent,
    CallRow.prompt_start,
    type_coerce(CallRow.prompt_ids, IntArray()),
    type_coerce(CallRow.completion_ids, IntArray()),
    type_coerce(CallRow.logprobs, FloatArray()),
    CallRow.spans,
)
"""The fields of a PackedCall, in their order."""


@dataclass(frozen=True, slots=True)
class BatchRollout:
    id: RolloutId
    reward: float | None
    """None: masked."""
    calls: Sequence[TokenCall]
    """Calls of its last epoch, by number."""
    stop_reason: StopReason | None = None
    turn_rewards: TurnRewards | None = None
    """Rewards of its turns; None: none is given to turns."""
    untrained: frozenset[int] = frozenset()
    """Calls that are context only: a program's side matters, and what its last life did not ask."""

    @property
    def trained(self) -> frozenset[int] | None:
        """Numbers of the others; None: all are trained."""
        return trained_of(self.calls, self.untrained)


@dataclass(frozen=True, slots=True)
class BatchGroup:
    id: GroupId
    rollouts: list[BatchRollout]
    """In sample order."""


def trained_of(calls: Iterable[TokenCall], untrained: frozenset[int]) -> frozenset[int] | None:
    """Numbers of the calls that are trained; None: all."""
    if not untrained:
        return None
    return frozenset(call.number for call in calls) - untrained


async def load_batch(db: Database, campaign: CampaignId, step: int) -> list[BatchGroup]:
    """The groups of a planned step, in batch order; empty when it was not planned."""
    return await load_groups(db, await steps.step_groups(db, campaign, step))


async def load_groups(db: Database, groups: list[GroupId]) -> list[BatchGroup]:
    """These groups, in the order given. Unknown groups are left out."""
    calls: defaultdict[str, list[PackedCall]] = defaultdict(list)
    untrained: dict[str, frozenset[int]] = {}
    async with db.transaction() as connection:
        result = await connection.execute(
            select(
                RolloutRow.group_id,
                RolloutRow.id,
                RolloutRow.epoch,
                RolloutRow.reward,
                RolloutRow.stop_reason,
                RolloutRow.turn_rewards,
            )
            .where(RolloutRow.group_id.in_(groups))
            .order_by(RolloutRow.sample_index)
        )
        rows = result.all()
        for start in range(0, len(rows), PAGE_ROLLOUTS):
            page = [(row.id, row.epoch) for row in rows[start : start + PAGE_ROLLOUTS]]
            arrived = await connection.execute(
                select(CallRow.rollout_id, *_CALL)
                .where(tuple_(CallRow.rollout_id, CallRow.epoch).in_(page))
                .order_by(CallRow.rollout_id, CallRow.number)
            )
            # Rows are decoded as they are taken from the result.
            await asyncio.to_thread(_decode, arrived, calls)
            untrained |= await branch_choice.untrained(connection, page)
    rollouts: defaultdict[str, list[BatchRollout]] = defaultdict(list)
    for group, id, _, reward, stop_reason, given in rows:
        rollouts[group].append(
            BatchRollout(
                id,
                reward,
                calls[id],
                stop_reason,
                None if given is None else TurnRewards.of_stored(given),
                untrained.get(id, frozenset()),
            )
        )
    return [BatchGroup(id, rollouts[id]) for id in groups if id in rollouts]


async def without_tokens(
    db: Database, campaign: CampaignId, only: Sequence[int]
) -> list[tuple[int, RolloutId]]:
    """Scored rollouts of these steps that took turns and have no token stored, with their steps: a
    batch without them is another one."""
    has_tokens = exists().where(
        CallRow.rollout_id == RolloutRow.id,
        CallRow.epoch == RolloutRow.epoch,
        func.octet_length(CallRow.completion_ids) > 0,
    )
    statement = (
        select(StepGroupRow.step, RolloutRow.id)
        .join(RolloutRow, RolloutRow.group_id == StepGroupRow.group_id)
        .where(
            StepGroupRow.campaign_id == campaign,
            StepGroupRow.step.in_(only),
            SCORED,
            RolloutRow.num_turns > 0,
            ~has_tokens,
        )
        .order_by(StepGroupRow.step, RolloutRow.id)
    )
    async with db.transaction() as connection:
        return [(step, RolloutId(id)) for step, id in await connection.execute(statement)]


async def calls_of(
    db: Database, rollout: RolloutId, epoch: int
) -> tuple[list[TokenCall], frozenset[int]]:
    """Calls of one epoch of a rollout, by number; and those of them that are context only."""
    calls: defaultdict[str, list[PackedCall]] = defaultdict(list)
    async with db.transaction() as connection:
        arrived = await connection.execute(
            select(CallRow.rollout_id, *_CALL)
            .where(CallRow.rollout_id == rollout, CallRow.epoch == epoch)
            .order_by(CallRow.number)
        )
        await asyncio.to_thread(_decode, arrived, calls)
        untrained = await branch_choice.untrained(connection, [(rollout, epoch)])
    return [*calls[rollout]], untrained.get(rollout, frozenset())


def _decode(rows: Iterable[Row[Any]], calls: defaultdict[str, list[PackedCall]]) -> None:
    for rollout, *fields in rows:
        calls[rollout].append(PackedCall(*fields))
