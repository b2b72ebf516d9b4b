"""How far a campaign is: the few figures a live display needs, in three queries."""

from dataclasses import dataclass

from sqlalchemy import func, select

from infra.db.database import Database
from infra.db.models import GroupRow, PolicyVersionRow, RolloutRow, StepRow
from mainspring.ids import CampaignId
from mainspring.status import GroupKind, StepStatus


@dataclass(frozen=True, slots=True)
class Seen:
    num_steps: int
    num_rollouts: int
    num_rollouts_running: int
    num_turns: int
    num_masked: int
    rewards: list[float]
    """Mean reward of each finished step."""
    max_logprob_gap: float | None
    evaluations: list[str]


async def read(database: Database, campaign: CampaignId) -> Seen:
    finished = RolloutRow.finished_at.is_not(None)
    async with database.transaction() as connection:
        done, running, turns, masked = (
            await connection.execute(
                select(
                    func.count().filter(finished),
                    func.count().filter(~finished, RolloutRow.started_at.is_not(None)),
                    func.coalesce(func.sum(RolloutRow.num_turns), 0),
                    func.count().filter(finished, RolloutRow.reward.is_(None)),
                ).where(RolloutRow.campaign_id == campaign)
            )
        ).one()
        metrics = (
            await connection.scalars(
                select(StepRow.metrics)
                .where(StepRow.campaign_id == campaign, StepRow.status == StepStatus.DONE)
                .order_by(StepRow.step)
            )
        ).all()
        gaps = (
            await connection.scalars(
                select(PolicyVersionRow.logprob_gap_max).where(
                    PolicyVersionRow.campaign_id == campaign,
                    PolicyVersionRow.logprob_gap_max.is_not(None),
                )
            )
        ).all()
        evaluations = await connection.execute(
            select(
                GroupRow.policy_version,
                GroupRow.split,
                GroupRow.sampling,
                func.count(RolloutRow.reward),
                func.coalesce(func.sum(RolloutRow.reward), 0.0),
            )
            .join(RolloutRow, RolloutRow.group_id == GroupRow.id)
            .where(
                GroupRow.campaign_id == campaign,
                GroupRow.kind == GroupKind.EVAL,
                GroupRow.finished_at.is_not(None),
            )
            .group_by(GroupRow.id)
            .order_by(GroupRow.policy_version, GroupRow.split, GroupRow.sampling.desc())
        )
        lines = [
            f"{solved / max(1, scored):.1%} of {scored} {split}, {sampling}, version {version}"
            for version, split, sampling, scored, solved in evaluations
        ]
    seen_gaps = [*gaps, *(m["logprob_gap_max"] or 0.0 for m in metrics)]
    return Seen(
        num_steps=len(metrics),
        num_rollouts=done,
        num_rollouts_running=running,
        num_turns=turns,
        num_masked=masked,
        rewards=[m["reward_mean"] or 0.0 for m in metrics],
        max_logprob_gap=max(seen_gaps) if seen_gaps else None,
        evaluations=lines,
    )
