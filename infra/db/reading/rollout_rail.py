"""The outline of one rollout: a line for each of its calls, its sandboxes, its neighbours.

Read only, and small for a rollout of hundreds of turns: no output and no token is read. Used by
the viewer.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.programs import branch_choice
from infra.db.tables.columns import num_packed
from infra.db.tables.models import (
    CallRow,
    ExecutionRow,
    GroupRow,
    RolloutRow,
    SandboxRow,
    StepGroupRow,
)
from mainspring.ids import GroupId, RolloutId
from mainspring.status import ExecutionState, SandboxPurpose, SandboxStatus

HEAD_CHARS = 200
"""Characters of a command that an outline needs."""


@dataclass(frozen=True, slots=True)
class RailCall:
    number: int
    """From 0, as stored."""
    parent: int | None
    latency_s: float
    num_prompt_tokens: int | None
    num_completion_tokens: int | None
    finish_reason: str
    created_at: datetime
    command: str | None
    """Beginning of its first command; None: it has none."""
    num_commands: int
    returncode: int | None
    """The first that is not 0, else 0; None: nothing has ended."""
    wall_s: float
    """Seconds of all its commands."""
    is_running: bool
    """A command of it has no result."""


@dataclass(frozen=True, slots=True)
class SandboxSpan:
    id: str
    epoch: int
    purpose: SandboxPurpose
    node: str
    backend: str
    status: SandboxStatus
    opened_at: datetime
    closed_at: datetime | None


async def calls(connection: AsyncConnection, rollout: RolloutId, epoch: int) -> list[RailCall]:
    """Every call of an epoch, in order."""
    done = ExecutionRow.state == ExecutionState.DONE
    ran = (
        select(
            ExecutionRow.call.label("call"),
            func.min(func.left(ExecutionRow.command, HEAD_CHARS))
            .filter(ExecutionRow.index == 0)
            .label("command"),
            func.count().label("num"),
            func.coalesce(
                func.min(ExecutionRow.returncode).filter(done, ExecutionRow.returncode != 0),
                func.min(ExecutionRow.returncode).filter(done),
            ).label("returncode"),
            func.coalesce(func.sum(ExecutionRow.wall_s), 0.0).label("wall_s"),
            func.bool_or(~done).label("is_running"),
        )
        .where(ExecutionRow.rollout_id == rollout, ExecutionRow.epoch == epoch)
        .group_by(ExecutionRow.call)
        .subquery()
    )
    in_text = num_packed(CallRow.prompt_ids) + num_packed(CallRow.completion_ids) == 0
    rows = await connection.execute(
        select(
            CallRow.number,
            CallRow.parent,
            CallRow.latency_s,
            case(
                (in_text, CallRow.num_prompt_tokens),
                else_=CallRow.prompt_start + num_packed(CallRow.prompt_ids),
            ),
            case(
                (in_text, CallRow.num_completion_tokens),
                else_=num_packed(CallRow.completion_ids),
            ),
            CallRow.finish_reason,
            CallRow.created_at,
            ran.c.command,
            func.coalesce(ran.c.num, 0),
            ran.c.returncode,
            func.coalesce(ran.c.wall_s, 0.0),
            func.coalesce(ran.c.is_running, False),
        )
        .outerjoin(ran, ran.c.call == CallRow.number)
        .where(CallRow.rollout_id == rollout, CallRow.epoch == epoch)
        .order_by(CallRow.number)
    )
    return [RailCall(*row) for row in rows]


async def lives(connection: AsyncConnection, rollout: RolloutId) -> list[SandboxSpan]:
    """Every sandbox that the rollout had, the oldest first."""
    rows = await connection.execute(
        select(
            SandboxRow.id,
            SandboxRow.epoch,
            SandboxRow.purpose,
            SandboxRow.node,
            SandboxRow.backend,
            SandboxRow.status,
            SandboxRow.opened_at,
            SandboxRow.closed_at,
        )
        .where(SandboxRow.rollout_id == rollout)
        .order_by(SandboxRow.opened_at, SandboxRow.id)
    )
    return [SandboxSpan(*row) for row in rows]


async def neighbours(
    connection: AsyncConnection, group: GroupId, sample_index: int
) -> tuple[RolloutId | None, RolloutId | None]:
    """Rollouts before and after this one in its group."""
    before = await connection.scalar(
        select(RolloutRow.id)
        .where(RolloutRow.group_id == group, RolloutRow.sample_index < sample_index)
        .order_by(RolloutRow.sample_index.desc())
        .limit(1)
    )
    after = await connection.scalar(
        select(RolloutRow.id)
        .where(RolloutRow.group_id == group, RolloutRow.sample_index > sample_index)
        .order_by(RolloutRow.sample_index)
        .limit(1)
    )
    return (
        None if before is None else RolloutId(before),
        None if after is None else RolloutId(after),
    )


async def epochs(connection: AsyncConnection, rollout: RolloutId) -> list[int]:
    """Epochs that have calls, in order: earlier ones are what was begun before a reset."""
    return list(
        await connection.scalars(
            select(CallRow.epoch)
            .where(CallRow.rollout_id == rollout)
            .distinct()
            .order_by(CallRow.epoch)
        )
    )


async def step_of(connection: AsyncConnection, group: GroupId) -> int | None:
    """The step of its own campaign that trains on the group."""
    return await connection.scalar(
        select(StepGroupRow.step)
        .join(GroupRow, GroupRow.id == StepGroupRow.group_id)
        .where(StepGroupRow.group_id == group, StepGroupRow.campaign_id == GroupRow.campaign_id)
    )


async def untrained(connection: AsyncConnection, rollout: RolloutId, epoch: int) -> frozenset[int]:
    """Calls that are context only, wherever the rollout is trained on."""
    chosen = await branch_choice.untrained(connection, [(rollout, epoch)])
    return chosen.get(rollout, frozenset())
