"""Where a campaign stands, which groups it may start, how a rollout of another run ended.

Invariant: asked again, each gives what stands: a group that was admitted is admitted once.
"""

from activities.implements import implements
from activities.rollouts import make_group
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.plans import standing
from infra.db.plans.standing import Standing
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns
from mainspring.algorithms.admission import num_admissible_groups
from mainspring.config.any_run import training
from mainspring.protocol.activities import ADMIT_GROUPS, READ_OUTCOME, SURVEY_CAMPAIGN
from mainspring.protocol.campaign import (
    AdmitInput,
    AdmitResult,
    GroupInput,
    OutcomeInput,
    OutcomeResult,
    Survey,
    SurveyInput,
)
from mainspring.protocol.rollout import RolloutResult
from mainspring.status import CampaignStatus, RolloutPhase, StopReason

FAULT_CHARS = 300
"""Length of a fault in the survey, whose size is bounded."""
_CUT = (StopReason.CANCELLED, StopReason.TERMINATED)


class CampaignActivities:
    def __init__(self, db: Database, known: FactCache) -> None:
        self._db = db
        self._known = known

    @implements(SURVEY_CAMPAIGN)
    async def survey_campaign(self, ask: SurveyInput) -> Survey:
        """Also corrects the row, which may have the end of a run before this one was reset."""
        config = training(await self._known.config(ask.campaign))
        found = await standing.read(self._db, ask.campaign, ask.since, config.batches)
        flat_as, num_flat = None, found.num_flat_in_a_row
        if num_flat >= config.trainer.flat_groups_bound:
            flat_as = await standing.ends_of_flat(self._db, ask.campaign, num_flat)
        status = CampaignStatus.WARMING_UP if found.version is None else ask.status
        if (await campaigns.get(self._db, ask.campaign)).status is not status:
            await campaigns.set_status(self._db, ask.campaign, status)
        return Survey(
            version=found.version,
            planned_step=found.planned_step,
            running=found.running,
            num_ready=found.num_ready,
            num_masked_in_a_row=found.num_masked_in_a_row,
            masked_by=None if found.masked_by is None else found.masked_by[:FAULT_CHARS],
            num_flat_in_a_row=num_flat,
            flat_as=flat_as,
            evaluated=found.evaluated,
            is_checked=found.is_checked,
            served=None if found.served == found.version else found.served,
            next_index=found.next_index,
        )

    @implements(ADMIT_GROUPS)
    async def admit_groups(self, ask: AdmitInput) -> AdmitResult:
        """Stored before they are started: two that ask at once store the same groups, because an
        index follows from what one look saw."""
        batches = training(await self._known.config(ask.campaign)).batches
        seen = await standing.read(self._db, ask.campaign, batches=batches)
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
        made = range(seen.next_index, seen.next_index + number)
        for index in made:
            ref = GroupInput(campaign=ask.campaign, index=index, policy_version=ask.policy_version)
            await make_group(self._db, self._known, ref)
        return AdmitResult(running=[*seen.running, *made])

    async def _draw(self, ask: AdmitInput, seen: Standing) -> range:
        made = range(seen.next_index, seen.next_index + len(seen.due))
        for index, draw in zip(made, seen.due, strict=True):
            version = ask.policy_version
            ref = GroupInput(campaign=ask.campaign, index=index, policy_version=version, draw=draw)
            await make_group(self._db, self._known, ref)
        return made

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
