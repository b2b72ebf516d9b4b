"""Live progress of a campaign in the terminal: a redrawn panel, or plain lines without a terminal.

Reads the store and what `infra.temporal.seen_waits` sees in Temporal; changes nothing.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from temporalio.client import Client
from temporalio.service import RPCError

from cli.operations.machine.supervisor import starting, waited_here
from cli.tables import Label, Screen, Table
from cli.terminal_text import drawn, plain
from infra.db.database import Database
from infra.db.plans import run_plans
from infra.db.reading import progress
from infra.db.reading.judge_warnings import judge_warnings
from infra.db.runs import campaigns, events, runs
from infra.db.runs.campaigns import CampaignRecord
from infra.db.tasks import verifications
from infra.db.training import sft
from infra.temporal.seen_waits import look
from mainspring.config.any_run import Measurement
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.sft import SftConfig
from mainspring.errors import WorkFailed
from mainspring.ids import CampaignId
from mainspring.status import CampaignKind, CampaignStatus
from mainspring.words.ends import status_words
from mainspring.words.events import lines as event_lines
from mainspring.words.wait import Wait, WaitKind
from mainspring.words.waits import ENDED, doing, waits

PLAIN_EVERY_S = 15.0
UNCHANGED_EVERY_S = 60.0
"""An equal line again: it tells that the command is alive."""
LOOK_EVERY_S = 5.0
"""Temporal is asked about a dozen workflows and queues."""
EVENT_S = 30.0
"""An event is news for as long."""
NUM_WAITS = 3
"""Shown in the panel."""
SPARK = "".join(chr(0x2581 + height) for height in range(8))
"""Block characters of rising height."""
SPARK_WIDTH = 60


@dataclass(frozen=True, slots=True)
class Shown:
    """View of a campaign now."""

    unit: str
    """Noun that its bar counts."""
    num_done: int
    total: int
    facts: list[tuple[str, str]]
    line: str
    """The facts in short, where there is no terminal."""
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True)
class Moves:
    """Progress in Temporal."""

    doing: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    lines: tuple[str, ...] = ()
    """The waits, as told."""
    kinds: tuple[WaitKind, ...] = ()
    """Kinds of these."""
    warnings: tuple[str, ...] = ()
    happened: tuple[tuple[str, str], ...] = ()
    """The newest event of the last EVENT_S, as a fact."""

    @property
    def told(self) -> list[tuple[str, str]]:
        """The first of the waits, each with the word for its kind."""
        kinds = (kind.value for kind in self.kinds)
        return list(zip(kinds, self.lines, strict=True))[:NUM_WAITS]


class RunWatch:
    def __init__(
        self,
        db: Database,
        client: Client,
        campaign: CampaignId,
        ui: str,
        *,
        on_stderr: bool = False,
        logs: Path | None = None,
        home: Path | None = None,
    ) -> None:
        """`logs`: of the workers that this process brings, where it does."""
        self._db = db
        self._home = home
        self._logs = logs
        self._client = client
        self._campaign = campaign
        self._ui = ui
        self._console = Screen(stderr=on_stderr)
        self._bar = Progress(
            Label("{task.description}"),
            BarColumn(40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("", total=None)
        self._live = Live(console=self._console, refresh_per_second=4, transient=False)
        self._drawn = ExitStack()
        self._said_at = 0.0
        self._keys_at: dict[str, float] = {}
        """States of the last UNCHANGED_EVERY_S, each with the time when it was last seen."""
        self._line = ""
        self._began: datetime | None = None
        self._looked_at = -LOOK_EVERY_S
        self._moves = Moves()

    async def __aenter__(self) -> "RunWatch":
        if self._console.is_terminal:
            self._drawn.enter_context(drawn(self._console))
            self._drawn.enter_context(self._live)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drawn.close()

    async def has_ended(self) -> bool:
        """Draw once; whether the campaign is over."""
        record = await campaigns.get(self._db, self._campaign)
        config = record.config
        if isinstance(config, CampaignConfig):
            shown = await self._training(record)
        elif isinstance(config, SftConfig):
            shown = await self._supervised(record, config)
        else:
            shown = await self._run(record, config)
        if self._console.is_terminal:
            self._bar.update(
                self._task, description=shown.unit, total=shown.total, completed=shown.num_done
            )
            self._live.update(self._panel(record, shown))
        else:
            self._print_line(record.status, shown)
        return record.status in campaigns.ENDS

    async def _training(self, record: CampaignRecord) -> "Shown":
        seen = await progress.read(self._db, self._campaign)
        moves = await self._look(record)
        masked = f", {seen.num_masked} masked" if seen.num_masked else ""
        facts = [
            *(("doing", each) for each in moves.doing),
            *moves.told,
            *moves.happened,
            *(("warning", each) for each in moves.warnings),
            (
                "rollouts",
                f"{seen.num_rollouts} done, {seen.num_rollouts_running} running, "
                f"{seen.num_turns} turns{masked}",
            ),
            *(("resolved", evaluation) for evaluation in seen.evaluations),
        ]
        if seen.num_groups_flat or seen.num_groups_masked:
            replaced = f"{seen.num_groups_flat} with equal rewards, {seen.num_groups_masked} masked"
            facts.append(("groups replaced", replaced))
        if seen.untrained:
            facts.append(("replaced", seen.untrained))
        if seen.empty_steps:
            facts.append(("trained nothing", f"{len(seen.empty_steps)} of {seen.num_steps} steps"))
        reward = ""
        if seen.rewards:
            reward = f", reward {seen.rewards[-1]:.2f}"
            facts.append(("reward", f"{sparkline(seen.rewards)}  {seen.rewards[-1]:.2f}"))
        if seen.max_logprob_gap is not None:
            facts.append(("log-prob gap", f"{seen.max_logprob_gap:.1e}"))
        line = f"{seen.num_rollouts} rollouts{masked}{reward}"
        if seen.empty_steps[-1:] == [record.num_steps_done]:
            line += f", step {record.num_steps_done} trained nothing"
        if seen.untrained:
            line += f", {seen.untrained}"
        if moves.doing or moves.lines:
            line += "; " + ", ".join([*moves.doing, *moves.lines[:1]])
        elif record.status not in ENDED:
            line += f"; {seen.num_rollouts_running} rollouts running"
        line = "; ".join([line, *moves.warnings[:1]])
        return Shown("steps", record.num_steps_done, record.num_steps, facts, line, moves.waits)

    async def _supervised(self, record: CampaignRecord, config: SftConfig) -> "Shown":
        data = await sft.data_of(self._db, self._campaign)
        num_done, newest = await sft.progress(self._db, self._campaign)
        moves = await self._look(record)
        facts = [
            *(("doing", each) for each in moves.doing),
            *moves.told,
            *moves.happened,
            ("data", f"{data.num_samples:,} samples, {data.num_tokens:,} tokens"),
        ]
        line = f"{data.num_samples:,} samples"
        if (loss := newest.get("loss")) is not None:
            line = f"loss {loss:.4f}"
            speed = newest.get("tokens_per_s") or 0.0
            facts.append(("newest step", f"{line}, {speed:,.0f} tokens/s"))
        if moves.doing or moves.lines:
            line += "; " + ", ".join([*moves.doing, *moves.lines[:1]])
        num_steps = config.trainer.steps_of(data.num_samples)
        return Shown("steps", num_done, num_steps, facts, line, moves.waits)

    async def _run(self, record: CampaignRecord, config: Measurement) -> "Shown":
        seen = await runs.tally(self._db, self._campaign)
        moves = await self._look(record)
        if isinstance(config, VerificationConfig):
            passes = await verifications.passes(self._db, record.id)
            said = verifications.in_words(passes)
        else:
            said = f"{seen.num_resolved} resolved"
        masked = f", {seen.num_masked} masked" if seen.num_masked else ""
        said = f"{seen.num_running} running, {said}{masked}"
        facts = [
            ("rollouts", said),
            *moves.told,
            *moves.happened,
            *(("warning", each) for each in moves.warnings),
        ]
        line = "; ".join([said, *moves.lines[:1], *moves.warnings[:1]])
        total = await run_plans.total(self._db, config)
        return Shown("rollouts", seen.num_done, total, facts, line, moves.waits)

    async def _look(self, record: CampaignRecord) -> Moves:
        """Progress in Temporal, asked now and then; nothing when the campaign has ended."""
        if record.status in ENDED:
            return Moves()
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return self._moves
        self._looked_at = time.monotonic()
        told = tuple(await judge_warnings(self._db, self._campaign, record.config))
        happened = await self._happened()
        try:
            scene = await look(self._db, self._client, record, self._home)
        except RPCError as error:
            no_answer = f"Temporal, which does not answer: {error.message}"
            self._moves = Moves(
                lines=(no_answer,), kinds=(WaitKind.BLOCKED,), warnings=told, happened=happened
            )
            return self._moves
        found = waits(scene)
        if self._logs is not None:
            self._began = self._began or scene.at
            found = waited_here(starting(found, self._logs.parent, os.getpid()), self._began)
        lines = tuple(wait.line(scene.at) for wait in found)
        kinds = tuple(wait.kind for wait in found)
        self._moves = Moves(tuple(doing(scene)), tuple(found), lines, kinds, told, happened)
        return self._moves

    async def _happened(self) -> tuple[tuple[str, str], ...]:
        since = timedelta(seconds=EVENT_S)
        found = event_lines(await events.newest(self._db, self._campaign, since=since))
        return tuple(("event", line.told()) for line in found[-1:])

    def _panel(self, record: CampaignRecord, shown: "Shown") -> Group:
        facts = Table.grid("", "", padding=(0, 2))
        for fact in shown.facts:
            facts.add_row(*fact)
        title = Text(plain(f"{_named(record)}: {status_words(record.status)}"), style="bold")
        return Group(title, self._bar, facts, Text(plain(self._ui), style="dim"))

    def _print_line(self, status: CampaignStatus, shown: "Shown") -> None:
        """Print on change, or every PLAIN_EVERY_S, an equal line every UNCHANGED_EVERY_S. Finished
        rollouts of a run are no change, nor is what comes again within UNCHANGED_EVERY_S: what is
        retried waits, runs and waits."""
        now = time.monotonic()
        quiet_s = now - self._said_at
        waits_for = shown.waits[0].what if shown.waits else ""
        key = f"{status}{shown.num_done if shown.unit == 'steps' else ''}{waits_for}"
        recent = {k: at for k, at in self._keys_at.items() if now - at < UNCHANGED_EVERY_S}
        self._keys_at = recent | {key: now}
        if key in recent and quiet_s <= PLAIN_EVERY_S:
            return
        far = f"{shown.unit.removesuffix('s')} {shown.num_done}/{shown.total}"
        line = f"{status_words(status)}: {far}, {shown.line}"
        if line == self._line and quiet_s <= UNCHANGED_EVERY_S:
            return
        self._said_at, self._line = now, line
        self._console.print(line, soft_wrap=True)


def require_finished(record: CampaignRecord, remedy: str) -> None:
    """Raises WorkFailed with its error when a campaign or other run ended otherwise."""
    if record.status is CampaignStatus.FINISHED:
        return
    error = (record.error or "").removeprefix(f"campaign {record.id}: ")
    raise WorkFailed(
        f"{_named(record)} ended as {record.status}" + (f": {error}" if error else ""),
        remedy=remedy,
    )


def _named(record: CampaignRecord) -> str:
    return f"{'campaign' if record.kind is CampaignKind.TRAIN else record.kind} {record.id}"


def sparkline(values: list[float]) -> str:
    """The last values between 0 and 1 as one line of bars."""
    top = len(SPARK) - 1
    return "".join(SPARK[round(min(1.0, max(0.0, v)) * top)] for v in values[-SPARK_WIDTH:])


def follow(home: Path | None, name: str, say: Callable[[str], None]) -> None:
    """`say`: who does not answer. Raises UnknownId, and WorkFailed when it ended otherwise than
    finished."""
    from cli.operations.machine.services import Services, with_services
    from infra.db.naming import campaign_named

    async def go(services: Services) -> None:
        ui = services.settings.temporal_link
        campaign = (await campaign_named(services.db, name)).id
        async with RunWatch(
            services.db, services.client, campaign, ui, home=services.settings.home
        ) as watch:
            while not await watch.has_ended():
                await asyncio.sleep(1.0)
        record = await campaigns.get(services.db, campaign)
        require_finished(record, f"see `mainspring campaign show {campaign}`")

    asyncio.run(with_services(home, go, say=say))
