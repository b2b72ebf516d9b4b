"""Runs that measure: their rollouts, stored part by part."""

from activities.implements import implements
from infra.db.database import Database
from infra.db.plans import run_plans
from infra.db.rollouts import cross_tests, groups
from infra.db.runs import campaigns, runs
from mainspring.protocol.activities import CREATE_RUN_GROUP, NEXT_CANDIDATES
from mainspring.protocol.cross_testing import CandidatesInput, CandidatesResult
from mainspring.protocol.run import RunGroupInput, RunGroupResult
from mainspring.status import GroupKind

CANDIDATES_AT_ONCE = 50
"""Their ids must stay a small payload."""


class RunActivities:
    def __init__(self, db: Database) -> None:
        self._db = db

    @implements(CREATE_RUN_GROUP)
    async def create_run_group(self, ask: RunGroupInput) -> RunGroupResult:
        """The part of this index, stored now or long ago, and what of it is still to be played."""
        in_campaign = ask.evaluation is not None
        if not in_campaign:
            # The row may have the end of a run before this one was reset.
            await campaigns.resume(self._db, ask.campaign)
        group = run_plans.part_id(ask.campaign, ask.index, ask.evaluation)
        unfinished = await runs.take_up(self._db, group, complete_stays=in_campaign)
        if unfinished is None:
            if not in_campaign:
                await self._refuse_gap(ask)
            config = (await campaigns.get(self._db, ask.campaign)).config
            part = await run_plans.planned(self._db, config, ask.index, ask.evaluation)
            if not part.rollouts and not in_campaign:
                return RunGroupResult(group=group, size=0, unfinished=[])
            await groups.create_group(
                self._db,
                group,
                ask.campaign,
                GroupKind.EVAL,
                index=part.index,
                policy_version=part.policy_version,
                split=part.split,
                sampling=part.sampling,
                rollouts=part.rollouts,
            )
            unfinished = await runs.take_up(self._db, group, complete_stays=in_campaign)
        size = (await groups.get(self._db, group)).size
        return RunGroupResult(
            group=group, size=size, unfinished=unfinished or [], is_last=in_campaign
        )

    @implements(NEXT_CANDIDATES)
    async def next_candidates(self, ask: CandidatesInput) -> CandidatesResult:
        """Candidates of an evaluation to be compared next."""
        found = await cross_tests.rollouts_after(
            self._db, ask.campaign, ask.after, CANDIDATES_AT_ONCE
        )
        return CandidatesResult(rollouts=found)

    async def _refuse_gap(self, ask: RunGroupInput) -> None:
        """Raises UsageError when parts before this one are not stored."""
        num_parts = await runs.num_parts(self._db, ask.campaign)
        if num_parts < ask.index:
            raise runs.older_store(ask.campaign, f"has {num_parts} of its {ask.index} parts")
