"""Evaluations, verifications and regrades: their rollouts, stored part by part."""

from activities.implements import implements
from infra.db import campaigns, groups, runs
from infra.db.database import Database
from infra.db.models import Sampling
from mainspring.ids import run_group_id
from mainspring.protocol.activities import CREATE_RUN_GROUP
from mainspring.protocol.run import RunGroupInput, RunGroupResult
from mainspring.status import GroupKind


class RunActivities:
    def __init__(self, db: Database) -> None:
        self._db = db

    @implements(CREATE_RUN_GROUP)
    async def create_run_group(self, ask: RunGroupInput) -> RunGroupResult:
        """The part of this index, stored now or long ago, and what of it is still to be played."""
        # The row may have the end of a run before this one was reset.
        await campaigns.resume(self._db, ask.campaign)
        group = run_group_id(ask.campaign, ask.index)
        unfinished = await runs.take_up(self._db, group)
        if unfinished is None:
            record = await campaigns.get(self._db, ask.campaign)
            planned = await runs.planned(self._db, record, ask.index)
            if not planned:
                return RunGroupResult(group=group, size=0, unfinished=[])
            greedy = record.config.policy.temperature == 0
            await groups.create_group(
                self._db,
                group,
                ask.campaign,
                GroupKind.EVAL,
                index=ask.index,
                policy_version=0,
                split=record.config.run.split,
                sampling=Sampling.GREEDY if greedy else Sampling.SAMPLED,
                rollouts=planned,
            )
            unfinished = await runs.take_up(self._db, group)
        size = (await groups.get(self._db, group)).size
        return RunGroupResult(group=group, size=size, unfinished=unfinished or [])
