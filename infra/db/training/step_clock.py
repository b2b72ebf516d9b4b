"""How the time of a step was spent, by the store's clock: by the trainer and by the engines.

Invariant: reads only. A request counts from the moment it was sent until its reply, or the newest
part of it, was stored; to which engine it went is not stored. Used by the trainer's activities.
"""

from sqlalchemy import text

from infra.db.database import Database
from infra.db.training.steps import never_planned
from mainspring.ids import CampaignId
from mainspring.training.step_metrics import StepClock

# The batches of a campaign that trains another one's again are planned before their step is due.
# A rollout that had ended before the window has no request in it: so calls of weeks are not read.
_CLOCK = text("""
    WITH step AS (
        SELECT step.planned_at, before.created_at AS since
        FROM steps AS step
        JOIN policy_versions AS before
            ON before.campaign_id = step.campaign_id
            AND before.version = step.policy_version_before
        WHERE step.campaign_id = :campaign AND step.step = :step
    ), playing AS (
        SELECT rollout.id, step.since
        FROM rollouts AS rollout, step
        WHERE rollout.campaign_id = :campaign
            AND (rollout.finished_at IS NULL OR rollout.finished_at > step.since)
    ), request AS (
        SELECT created_at AS until, latency_s, since
        FROM calls JOIN playing ON calls.rollout_id = playing.id
        UNION ALL
        SELECT max(updated_at) AS until, max(latency_s) AS latency_s, since
        FROM partial_calls JOIN playing ON partial_calls.rollout_id = playing.id
        GROUP BY rollout_id, epoch, number, since
    ), span AS (
        SELECT greatest(until - make_interval(secs => latency_s), since) AS begun, until
        FROM request WHERE until > since
    ), busy AS (
        SELECT range_agg(tstzrange(begun, until)) AS ranges,
            sum(extract(epoch FROM until - begun)) AS request_s
        FROM span
    )
    SELECT
        extract(epoch FROM greatest(planned_at - since, interval '0'))::float8,
        extract(epoch FROM now() - since)::float8,
        (SELECT coalesce(sum(extract(epoch FROM upper(part) - lower(part))), 0)
            FROM busy, unnest(busy.ranges) AS part)::float8,
        (SELECT coalesce(request_s, 0) FROM busy)::float8
    FROM step
""")


async def step_clock(db: Database, campaign: CampaignId, step: int) -> StepClock:
    """The clock of a planned step, from the commit of the version that it begins with. Raises
    StepOutOfOrder."""
    async with db.transaction() as connection:
        row = (await connection.execute(_CLOCK, {"campaign": campaign, "step": step})).one_or_none()
    if row is None:
        raise never_planned(campaign, step)
    waited_s, since_s, busy_s, request_s = row
    return StepClock(
        trainer_idle_s=waited_s,
        since_before_s=since_s,
        engine_idle_s=max(since_s - busy_s, 0.0),
        engine_request_s=request_s,
    )
