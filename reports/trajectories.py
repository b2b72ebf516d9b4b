"""Which rollouts a report shows whole, and one of them turn by turn."""

from collections.abc import Sequence

from infra.db.database import Database
from infra.db.reading.evaluations import EvaluatedRollout
from infra.db.rollouts import rollouts, turns
from infra.db.tasks import tasks
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import by_call
from reports.data import RanCommand, ShownTrajectory, ShownTurn


def worth_reading(evaluated: Sequence[EvaluatedRollout]) -> list[tuple[RolloutId, int]]:
    """(rollout, policy version) of up to four: one task that the first policy failed and the newest
    solves, with both attempts; one the newest fails; the newest one that was masked. `evaluated`
    has the newest version first."""
    if not evaluated:
        return []
    newest = evaluated[0].policy_version
    failed_first = {
        rollout.task: rollout
        for rollout in evaluated
        if rollout.policy_version == 0 and rollout.solved is False
    }
    learned = next(
        (
            r
            for r in evaluated
            if r.policy_version == newest and r.solved and r.task in failed_first
        ),
        None,
    )
    chosen: list[EvaluatedRollout] = []
    if learned is not None and newest > 0:
        chosen += [failed_first[learned.task], learned]
    else:
        chosen += [rollout for rollout in evaluated if rollout.solved][:1]
    for solved in (False, None):
        other = next((rollout for rollout in evaluated if rollout.solved is solved), None)
        if other is not None and other not in chosen:
            chosen.append(other)
    return [(rollout.id, rollout.policy_version) for rollout in chosen]


async def trajectory(database: Database, rollout: RolloutId, version: int) -> ShownTrajectory:
    record = await rollouts.get(database, rollout)
    task = await tasks.get_task(database, record.task)
    replies, results = await turns.history(database, rollout, record.epoch)
    results_of = by_call(results)
    played = [
        ShownTurn(
            reply=reply.text,
            commands=tuple(
                RanCommand(ran.command, ran.returncode, ran.output.decode("utf-8", "replace"))
                for ran in results_of[reply.number]
            ),
        )
        for reply in replies
    ]
    return ShownTrajectory(
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
