"""Dropping a planned batch, and rolling back the newest policy version, from the page of a step.

Imported by `offered`.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from cli.operations.acts.services import Place
from cli.operations.machine.services import Services
from cli.operations.runs import campaign_control
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.rollouts import groups
from infra.db.training import discards, steps
from mainspring.status import GroupKind, GroupStatus, StepStatus
from view.actions.protocol import ActRequest, Preview, Say
from view.page_request import url
from view.pages.group import StepPage

_OPEN = (GroupStatus.RUNNING, GroupStatus.READY)


class DropBatch:
    """Drop the batch of the planned step."""

    name = "drop-batch"
    title = "drop this batch"

    def __init__(self, place: Place) -> None:
        self._place = place

    def offer(self, shown: Any) -> Mapping[str, str] | None:
        if not isinstance(shown, StepPage) or shown.status is not StepStatus.PLANNED:
            return None
        return {"of": shown.campaign} if shown.can_be_discarded else None

    async def preview(self, asked: ActRequest) -> Preview:
        async def read(db: Database) -> Preview:
            record = await campaign_named(db, asked.of)
            batch = await discards.planned_batch(db, record.id)
            return Preview(
                what=[
                    f"The batch of step {batch.step} is dropped: its groups "
                    f"({len(batch.groups):,}) are masked and replaced by new ones, which are "
                    "played. Steps that are done stay.",
                ],
                command=f"mainspring campaign drop-batch {shlex.quote(record.id)}",
                back=url("c", record.id),
                seen=f"step {batch.step}: {' '.join(batch.groups)}",
                confirm=record.id,
            )

        return await self._place.read(read)

    async def do(self, asked: ActRequest, shown: Preview, by: str, say: Say) -> str:
        step = int(shown.seen.split(":")[0].removeprefix("step "))

        async def go(services: Services) -> str:
            return await campaign_control.drop_batch(
                services.client, services.db, asked.of, by, step
            )

        return await self._place.act(go, say)


class RollBackStep:
    """Discard the newest policy version and its step."""

    name = "rollback"
    title = "roll back this step"

    def __init__(self, place: Place) -> None:
        self._place = place

    def offer(self, shown: Any) -> Mapping[str, str] | None:
        if not isinstance(shown, StepPage) or shown.status is not StepStatus.DONE:
            return None
        can = shown.can_be_discarded and shown.can_roll_back
        return {"of": shown.campaign} if can else None

    async def preview(self, asked: ActRequest) -> Preview:
        async def read(db: Database) -> Preview:
            campaign, version = await campaign_control.to_roll_back(db, asked.of)
            stored = await groups.list_groups(db, campaign, GroupKind.TRAIN)
            masked = {group.id for group in stored if group.status in _OPEN}
            masked |= set(await steps.step_groups(db, campaign, version))
            return Preview(
                what=[
                    f"Policy version {version} and step {version} are discarded: version "
                    f"{version - 1} is the newest then.",
                    f"Groups that may have tokens of the discarded weights ({len(masked):,}) are "
                    "masked, and replaced when the campaign is started again. Evaluations of "
                    f"version {version} are masked, too.",
                ],
                command=f"mainspring campaign rollback {shlex.quote(campaign)}",
                back=url("c", campaign),
                seen=str(version),
                confirm=campaign,
            )

        return await self._place.read(read)

    async def do(self, asked: ActRequest, shown: Preview, by: str, say: Say) -> str:
        async def go(services: Services) -> str:
            return await campaign_control.rollback(
                services.client,
                services.db,
                services.settings.home,
                asked.of,
                by,
                int(shown.seen),
            )

        return await self._place.act(go, say)
