"""Where a campaign stands, which groups it may start, how a rollout of another run ended.

Invariant: asked again, each gives what stands: a group that was admitted is admitted once.
"""

from activities.implements import implements
from activities.rollouts import make_group
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.nodes import engines
from infra.db.plans import standing
from infra.db.plans.standing import Standing
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from mainspring.algorithms.admission import num_admissible_groups
from mainspring.config.any_run import training
from mainspring.ids import CampaignId
from mainspring.protocol.activities import ADMIT_GROUPS, READ_OUTCOME, SURVEY_CAMPAIGN
from mainspring.protocol.campaign import (
    AdmitInput,
    AdmitResult,
    GroupInput,
    OutcomeInput,
    OutcomeResult,
    Survey,
    SurveyInput,
    plan_of,
)
from mainspring.protocol.rollout import RolloutResult
from mainspring.status import CampaignStatus, RolloutPhase, StopReason

FAULT_CHARS = 300
"""Length of a fault in the survey, whose size is bounded."""
_CUT = (StopReason.CANCELLED, StopReason.TERMINATED)


class CampaignActivities:
    def __init__(self, db: Database, cache: FactCache) -> None:
        self._db = db
        self._cache = cache

    @implements(SURVEY_CAMPAIGN)
    async def survey_campaign(self, ask: SurveyInput) -> Survey:
        """Also corrects the row, which may have the end of a run before this one was reset."""
        record = await campaigns.get(self._db, ask.campaign)
        config = training(record.config)
        seen = await standing.read(
            self._db, ask.campaign, ask.since, record.batches, record.first_index
        )
        flat_as, num_flat = None, seen.num_flat_in_a_row
        if num_flat >= config.trainer.flat_groups_bound:
            flat_as = await standing.ends_of_flat(self._db, ask.campaign, num_flat)
        status = CampaignStatus.WARMING_UP if seen.version is None else ask.status
        if record.status is not status:
            await campaigns.set_status(self._db, ask.campaign, status)
        return Survey(
            version=seen.version,
            planned_step=seen.planned_step,
            running=seen.running,
            num_ready=seen.num_ready,
            num_masked_in_a_row=seen.num_masked_in_a_row,
            masked_by=None if seen.masked_by is None else seen.masked_by[:FAULT_CHARS],
            num_flat_in_a_row=num_flat,
            flat_as=flat_as,
            evaluated=seen.evaluated,
            is_checked=seen.is_checked,
            served=None if seen.served == seen.version else seen.served,
            next_index=seen.next_index,
            plan=plan_of(config),
        )

    @implements(ADMIT_GROUPS)
    async def admit_groups(self, ask: AdmitInput) -> AdmitResult:
        """Stored before they are started: two that ask at once store the same groups, because an
        index follows from what one look saw."""
        record = await campaigns.get(self._db, ask.campaign)
        batches = record.batches
        seen = await standing.read(
            self._db, ask.campaign, batches=batches, first_index=record.first_index
        )
        if seen.served != ask.policy_version:
            return AdmitResult(running=seen.running)
        if batches is not None:
            return AdmitResult(running=[*seen.running, *await self._draw(ask, seen)])
        number = num_admissible_groups(
            num_steps=ask.num_steps,
            steps_done=ask.policy_version,
            groups_per_step=ask.groups_per_step,
            max_staleness=ask.max_staleness,
            in_flight=len(seen.running),
            ready=seen.num_ready,
        )
        if number and seen.running and await self._has_no_room(ask.campaign, record):
            number = 0  # the end of one that runs asks again
        indices = range(seen.next_index, seen.next_index + number)
        for index in indices:
            ref = GroupInput(campaign=ask.campaign, index=index, policy_version=ask.policy_version)
            await make_group(self._db, ref)
        return AdmitResult(running=[*seen.running, *indices])

    async def _has_no_room(self, campaign: CampaignId, record: CampaignRecord) -> bool:
        """Whether more rollouts would only take KV cache from those in flight."""
        urls = record.config.policy.engines
        return engines.are_full(await engines.members(self._db, campaign, urls))

    async def _draw(self, ask: AdmitInput, seen: Standing) -> range:
        indices = range(seen.next_index, seen.next_index + len(seen.due))
        for index, draw in zip(indices, seen.due, strict=True):
            version = ask.policy_version
            ref = GroupInput(campaign=ask.campaign, index=index, policy_version=version, draw=draw)
            await make_group(self._db, ref)
        return indices

    @implements(READ_OUTCOME)
    async def read_outcome(self, ask: OutcomeInput) -> OutcomeResult:
        row = await rollouts.get(self._db, ask.rollout)
        has_ended = row.phase is RolloutPhase.DONE
        if not has_ended or row.stop_reason is None or row.stop_reason in _CUT:
            return OutcomeResult(is_free=has_ended or row.run_id is None)
        return OutcomeResult(
            is_free=True,
            result=RolloutResult(
                rollout=row.id,
                stop_reason=row.stop_reason,
                reward=row.reward,
                num_turns=row.num_turns,
                verdict=row.verdict,
            ),
        )
