"""Which rollouts a report shows whole, and reading one of them turn by turn.

Also owns the three conditions every number of a report is counted by.
"""

from collections import defaultdict

from sqlalchemy import and_, case, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db import rollouts, tasks, turns
from infra.db.database import Database
from infra.db.models import GroupRow, RolloutRow
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import GroupKind, RolloutPhase, Sampling, Verdict
from mainspring.trajectories.turns import Execution
from reports.data import RanCommand, Trajectory, Turn

DONE = RolloutRow.phase == RolloutPhase.DONE
SCORED = and_(DONE, RolloutRow.reward.is_not(None))
RESOLVED = and_(SCORED, RolloutRow.verdict == Verdict.RESOLVED)


async def worth_reading(
    connection: AsyncConnection, campaign: CampaignId, split: str
) -> list[tuple[RolloutId, int]]:
    """(rollout, policy version) of up to four: one task that the first policy failed and the newest
    solves, with both attempts; one the newest fails; the newest one that was masked."""
    rows = (
        await connection.execute(
            select(
                GroupRow.policy_version,
                RolloutRow.task_id,
                RolloutRow.id,
                case((RESOLVED, 1), (SCORED, 0)).label("solved"),
            )
            .join(RolloutRow, RolloutRow.group_id == GroupRow.id)
            .where(
                GroupRow.campaign_id == campaign,
                GroupRow.kind == GroupKind.EVAL,
                GroupRow.split == split,
                GroupRow.sampling == Sampling.SAMPLED,
                DONE,
            )
            .order_by(GroupRow.policy_version.desc(), RolloutRow.sample_index)
        )
    ).all()
    if not rows:
        return []
    newest = rows[0].policy_version
    failed_first = {
        row.task_id: row.id for row in rows if row.policy_version == 0 and row.solved == 0
    }
    chosen: list[tuple[RolloutId, int]] = []
    learned = next(
        (r for r in rows if r.policy_version == newest and r.solved and r.task_id in failed_first),
        None,
    )
    if learned is not None and newest > 0:
        chosen += [(failed_first[learned.task_id], 0), (learned.id, newest)]
    elif (solved := next((r for r in rows if r.solved), None)) is not None:
        chosen.append((solved.id, solved.policy_version))
    for wanted in (0, None):
        other = next((r for r in rows if r.solved == wanted), None)
        if other is not None and (other.id, other.policy_version) not in chosen:
            chosen.append((other.id, other.policy_version))
    return chosen


async def trajectory(database: Database, rollout: RolloutId, version: int) -> Trajectory:
    record = await rollouts.get(database, rollout)
    task = await tasks.get_task(database, record.task)
    replies, results = await turns.history(database, rollout, record.epoch)
    results_of: defaultdict[int, list[Execution]] = defaultdict(list)
    for result in results:
        results_of[result.call].append(result)
    played = [
        Turn(
            reply=reply.text,
            commands=tuple(
                RanCommand(ran.command, ran.returncode, ran.output.decode("utf-8", "replace"))
                for ran in results_of[reply.number]
            ),
        )
        for reply in replies
    ]
    return Trajectory(
        rollout=rollout,
        task=record.task,
        issue=task.issue,
        policy_version=version,
        reward=record.reward,
        verdict=record.verdict,
        stop_reason=record.stop_reason,
        turns=tuple(played),
        reward_parts=record.reward_parts or {},
        suspicions=tuple(record.suspicions),
    )
