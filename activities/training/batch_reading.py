"""The groups of a step's batch, as the trainer reads them: with the rewards that they ended with,
or with those that another reward gives them now.

Invariants: reading gives the same at any time; a rollout that was masked stays masked; nothing is
written, and nothing is asked: a reward is computed from what is stored of the rollout's end. Used
by the training activities.
"""

from dataclasses import replace

from activities.scoring import score_stored
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.rollouts import rollouts
from infra.db.training import batches
from infra.db.training.batches import BatchGroup, BatchRollout
from mainspring.config.reward import RewardConfig
from mainspring.training.step_metrics import TrainerJob


async def read_batch(db: Database, job: TrainerJob, step: int) -> list[BatchGroup]:
    """The groups of a planned step, in batch order. Raises RewardBroken."""
    groups = await batches.load_batch(db, job.campaign, step)
    if not job.rescores:
        return groups
    cache = FactCache(db)
    return [
        replace(
            group,
            rollouts=[
                await _rescored(db, cache, rollout, job.config.reward) for rollout in group.rollouts
            ],
        )
        for group in groups
    ]


async def _rescored(
    db: Database, cache: FactCache, rollout: BatchRollout, reward: RewardConfig
) -> BatchRollout:
    if rollout.reward is None:
        return rollout
    scored = await score_stored(db, cache, await rollouts.get(db, rollout.id), reward)
    return replace(rollout, reward=scored.reward, turn_rewards=scored.turns)
