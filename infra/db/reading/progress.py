"""How far campaigns are: the few figures that a live display and a listing need."""

from dataclasses import dataclass

from sqlalchemy import func, select

from infra.db.database import Database
from infra.db.reading.endings import group_counts, replaced_batches
from infra.db.reading.evaluations import checked_gaps
from infra.db.runs.campaign_record import CampaignRecord
from infra.db.tables.models import GroupRow, RolloutRow, StepRow
from infra.db.tables.sft_rows import SftDataRow
from mainspring.ids import CampaignId
from mainspring.status import CampaignKind, GroupKind, GroupStatus, StepStatus, Verdict
from mainspring.training.watched import trained_nothing
from mainspring.words.figures import share_of


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
    num_groups_masked: int
    """Replaced: too few of their rollouts were scored, or an operator discarded them."""
    num_groups_flat: int
    """Replaced: their rewards were equal."""
    empty_steps: list[int]
    """Finished steps whose loss had no token: they trained nothing."""
    untrained: str | None
    """Why the newest batch was replaced in which nothing could be trained; None: none was."""


async def read(db: Database, campaign: CampaignId) -> Seen:
    """How far the run is: rollouts, turns, steps and newest figures."""
    finished = RolloutRow.finished_at.is_not(None)
    async with db.snapshot() as connection:
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
        of_steps = (
            await connection.execute(
                select(StepRow.metrics, StepRow.step)
                .where(StepRow.campaign_id == campaign, StepRow.status == StepStatus.DONE)
                .order_by(StepRow.step)
            )
        ).all()
        checked = await checked_gaps(connection, campaign)
        evaluations = await connection.execute(
            select(
                GroupRow.policy_version,
                GroupRow.split,
                GroupRow.sampling,
                func.count(RolloutRow.reward),
                func.count(RolloutRow.reward).filter(RolloutRow.verdict == Verdict.RESOLVED),
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
            f"{share_of(solved, scored)} of {scored} {split}, {sampling}, version {version}"
            for version, split, sampling, scored, solved in evaluations
        ]
        replaced = await group_counts(connection, campaign)
        untrained = await replaced_batches(connection, campaign)
    metrics = [step_metrics for step_metrics, _ in of_steps]
    gaps = (m["logprob_gap_max"] for m in metrics if m.get("num_gap_tokens"))
    seen_gaps = [*(policy.gap_max for policy in checked), *(gap for gap in gaps if gap is not None)]
    return Seen(
        num_steps=len(metrics),
        num_rollouts=done,
        num_rollouts_running=running,
        num_turns=turns,
        num_masked=masked,
        rewards=[m["reward_mean"] or 0.0 for m in metrics],
        max_logprob_gap=max(seen_gaps, default=None),
        evaluations=lines,
        num_groups_masked=replaced[GroupStatus.MASKED],
        num_groups_flat=replaced[GroupStatus.FLAT],
        empty_steps=[step for step_metrics, step in of_steps if trained_nothing(step_metrics)],
        untrained=next(iter(untrained), None),
    )


@dataclass(frozen=True, slots=True)
class ListedProgress:
    """How far one campaign of a listing is."""

    num_steps: int
    num_rollouts: int
    """Ended."""
    num_scored: int
    num_resolved: int
    num_samples: int | None = None
    """That a supervised run is trained on; None for other kinds."""


def num_steps_done(record: CampaignRecord, standing: ListedProgress | None) -> int:
    """Steps of a run that are done. Those of a supervised run make a version now and then."""
    if record.kind is CampaignKind.TRAIN:
        return record.num_steps_done
    return 0 if standing is None else standing.num_steps


async def standings(db: Database) -> dict[CampaignId, ListedProgress]:
    """Standing of every campaign that has begun."""
    ended = RolloutRow.finished_at.is_not(None)
    scored = ended & RolloutRow.reward.is_not(None)
    async with db.transaction() as connection:
        steps = await connection.execute(
            select(StepRow.campaign_id, func.count())
            .where(StepRow.status == StepStatus.DONE)
            .group_by(StepRow.campaign_id)
        )
        num_steps = {row[0]: row[1] for row in steps}
        sizes = await connection.execute(select(SftDataRow.campaign_id, SftDataRow.num_samples))
        num_samples = {row[0]: row[1] for row in sizes}
        rows = await connection.execute(
            select(
                RolloutRow.campaign_id,
                func.count().filter(ended),
                func.count().filter(scored),
                func.count().filter(scored, RolloutRow.verdict == Verdict.RESOLVED),
            ).group_by(RolloutRow.campaign_id)
        )
        num_rollouts = {row[0]: tuple(row[1:]) for row in rows}
    return {
        CampaignId(campaign): ListedProgress(
            num_steps.get(campaign, 0),
            *num_rollouts.get(campaign, (0, 0, 0)),
            num_samples=num_samples.get(campaign),
        )
        for campaign in num_steps.keys() | num_samples.keys() | num_rollouts.keys()
    }
