"""Live progress of a campaign in the terminal: a redrawn panel, or plain lines without a terminal.

Reads the store and Temporal's description of the workflow; changes nothing.
"""

import asyncio
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from temporalio.client import Client
from temporalio.service import RPCError

from infra.db import campaigns, progress
from infra.db.database import Database
from mainspring.ids import CampaignId, campaign_id, campaign_workflow
from mainspring.status import CampaignStatus

PLAIN_EVERY_S = 15.0
SPARK = "".join(chr(0x2581 + height) for height in range(8))
"""Block characters of rising height."""
SPARK_WIDTH = 60
ENDS = frozenset({CampaignStatus.FINISHED, CampaignStatus.FAILED, CampaignStatus.CANCELLED})


class Watch:
    def __init__(self, db: Database, client: Client, campaign: CampaignId, ui: str) -> None:
        self._db = db
        self._client = client
        self._campaign = campaign
        self._ui = ui
        self._console = Console()
        self._bar = Progress(
            TextColumn("steps"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._bar.add_task("steps", total=1)
        self._live = Live(console=self._console, refresh_per_second=4, transient=False)
        self._said_at = 0.0
        self._said = ""

    async def __aenter__(self) -> "Watch":
        if self._console.is_terminal:
            self._live.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    async def refresh(self) -> CampaignStatus:
        """Draw once; the campaign's status."""
        record = await campaigns.get(self._db, self._campaign)
        seen = await progress.read(self._db, self._campaign)
        doing = await self._doing()
        total = record.config.trainer.num_steps
        if self._console.is_terminal:
            self._bar.update(self._task, total=total, completed=seen.num_steps)
            self._live.update(self._panel(record.status, seen, doing))
        else:
            self._print_line(record.status, seen, doing, total)
        return record.status

    def _panel(self, status: CampaignStatus, seen: progress.Seen, doing: str) -> Group:
        facts = Table.grid(padding=(0, 2))
        facts.add_row("doing", doing)
        facts.add_row(
            "rollouts",
            f"{seen.num_rollouts} done, {seen.num_rollouts_running} running, "
            f"{seen.num_turns} turns, {seen.num_masked} masked",
        )
        for evaluation in seen.evaluations:
            facts.add_row("solve rate", evaluation)
        if seen.rewards:
            facts.add_row("reward", f"{sparkline(seen.rewards)}  {seen.rewards[-1]:.2f}")
        if seen.max_logprob_gap is not None:
            facts.add_row("log-prob gap", f"{seen.max_logprob_gap:.1e}")
        title = Text(f"campaign {self._campaign}: {status}", style="bold")
        return Group(title, self._bar, facts, Text(self._ui, style="dim"))

    def _print_line(
        self, status: CampaignStatus, seen: progress.Seen, doing: str, total: int
    ) -> None:
        reward = f", reward {seen.rewards[-1]:.2f}" if seen.rewards else ""
        line = f"{status}: step {seen.num_steps}/{total}, {seen.num_rollouts} rollouts{reward}"
        due = time.monotonic() - self._said_at > PLAIN_EVERY_S
        key = f"{status}{seen.num_steps}"
        if key == self._said and not due:
            return
        self._said, self._said_at = key, time.monotonic()
        self._console.print(f"{line}; {doing}", highlight=False, soft_wrap=True)

    async def _doing(self) -> str:
        """The campaign's running activities, with what the trainer last said of its progress."""
        handle = self._client.get_workflow_handle(campaign_workflow(self._campaign))
        try:
            described = await handle.describe()
        except RPCError as error:
            return f"(Temporal does not answer: {error.message})"
        return ", ".join(
            [_activity(pending) for pending in described.raw_description.pending_activities]
            or ["waiting for rollouts"]
        )


def _activity(pending: Any) -> str:
    name = pending.activity_type.name.replace("_", " ")
    notes = [
        payload.data.decode(errors="replace").strip('"')
        for payload in pending.heartbeat_details.payloads
    ]
    retry = f" (attempt {pending.attempt})" if pending.attempt > 1 else ""
    return f"{name}{': ' + notes[0] if notes and notes[0] else ''}{retry}"


def sparkline(values: list[float]) -> str:
    """The last values between 0 and 1 as one line of bars."""
    top = len(SPARK) - 1
    return "".join(SPARK[round(min(1.0, max(0.0, v)) * top)] for v in values[-SPARK_WIDTH:])


def follow(home: Path | None, name: str) -> None:
    from workers.services import Services, with_services

    async def go(services: Services) -> None:
        ui = services.settings.temporal_ui
        async with Watch(services.db, services.client, campaign_id(name), ui) as watch:
            while await watch.refresh() not in ENDS:
                await asyncio.sleep(1.0)

    asyncio.run(with_services(home, go))
