"""PauseRun, resuming and cancelling a run from its page.

Imported by `offered`.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cli.operations.acts.services import Place, counted
from cli.operations.machine.services import Services
from cli.operations.runs import campaign_control
from cli.operations.runs.stored_run import resuming
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.reading import run_overviews
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from mainspring.status import CampaignStatus
from view.actions.protocol import ActRequest, Preview, Say
from view.page_request import url
from view.pages.campaign import CampaignPage


@dataclass(frozen=True, slots=True)
class RunUnderWay:
    """A run that is under way."""

    record: CampaignRecord
    num_playing: int
    """Rollouts that have not ended."""

    @property
    def back(self) -> str:
        return url("c", self.record.id)


async def run_under_way(db: Database, name: str, verb: str) -> RunUnderWay:
    """Raises UsageError when it has ended, as the command does."""
    await campaign_control.refuse_ended(db, name, verb)
    record = await campaign_named(db, name)
    async with db.snapshot() as connection:
        phases = await run_overviews.phases(connection, record.id)
    return RunUnderWay(record, sum(phases.values()))


def runs_on(shown: Any) -> CampaignStatus | None:
    """Status of the run that a page shows, where it is under way."""
    if isinstance(shown, CampaignPage) and shown.status not in campaigns.ENDS:
        return shown.status
    return None


class PauseRun:
    """Pause a run, or resume it."""

    def __init__(self, place: Place, paused: bool) -> None:
        self._place = place
        self._paused = paused
        self.name = self.title = "pause" if paused else "resume"

    def offer(self, shown: Any) -> Mapping[str, str] | None:
        status = runs_on(shown)
        if status is None or (status is CampaignStatus.PAUSED) is self._paused:
            return None
        return {"of": shown.id}

    async def preview(self, asked: ActRequest) -> Preview:
        run = await self._place.read(lambda db: run_under_way(db, asked.of, self.name))
        record = run.record
        if self._paused:
            what = [
                f"Rollouts that are being played ({run.num_playing:,}) finish. Nothing new starts "
                "until it is resumed."
            ]
        else:
            what = [f"It is {record.status.value} now. New groups and steps start again."]
        return Preview(
            what=what,
            command=f"mainspring campaign {self.name} {shlex.quote(record.id)}",
            back=run.back,
            seen=record.status.value,
        )

    async def do(self, asked: ActRequest, shown: Preview, by: str, say: Say) -> str:
        async def go(services: Services) -> str:
            return await campaign_control.set_paused(
                services.client, services.db, asked.of, self._paused, say, by
            )

        return await self._place.act(go, say)


class CancelRun:
    """Cancel a run."""

    name = title = "cancel"

    def __init__(self, place: Place) -> None:
        self._place = place

    def offer(self, shown: Any) -> Mapping[str, str] | None:
        return None if runs_on(shown) is None else {"of": shown.id}

    async def preview(self, asked: ActRequest) -> Preview:
        run = await self._place.read(lambda db: run_under_way(db, asked.of, self.name))
        record = run.record
        again = resuming(record.kind, record.id, retrained_from=record.retrained_from)
        lost = "is lost" if run.num_playing == 1 else "are lost"
        return Preview(
            what=[
                f"{counted(run.num_playing, 'rollout')} in flight {lost}, with what was played of "
                "them. Steps, versions and rollouts that are done stay.",
                f"Resume it later with: {again}",
            ],
            command=f"mainspring campaign cancel {shlex.quote(record.id)}",
            back=run.back,
            seen=str(record.status in campaigns.ENDS),
            confirm=record.id,
        )

    async def do(self, asked: ActRequest, shown: Preview, by: str, say: Say) -> str:
        async def go(services: Services) -> str:
            campaign = await campaign_control.cancel(services.client, services.db, asked.of, by)
            unserved = await campaign_control.unserved(services.client, services.db, campaign)
            return f"campaign {campaign} is being cancelled" + (f"; {unserved}" if unserved else "")

        return await self._place.act(go, say)
