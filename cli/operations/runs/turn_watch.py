"""The turns of a run on the screen as they are taken, for a run of one task.

Invariants: each reply and each command is shown once, in their order; a rollout that begins again
tells so, and its turns follow from the first. Each look asks for what is new alone. What models and
commands wrote steers no terminal. Reads the store; changes nothing.
"""

import textwrap
from dataclasses import dataclass, field
from types import TracebackType

from rich.text import Text

from cli.operations.runs.watch import RunWatch
from cli.terminal_text import plain
from infra.db.rollouts import rollouts, turns
from infra.db.rollouts.rollouts import RolloutRecord
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from mainspring.status import RolloutPhase
from mainspring.trajectories.costs import num_completion_tokens, num_prompt_tokens
from mainspring.trajectories.turns import Call, Execution, by_call
from mainspring.words.figures import duration
from mainspring.words.wait import WaitKind

OUTPUT_LINES = 12
"""Lines shown of a command's output: its beginning and its end. `rollout show` has the rest."""
REPLY_LINES = 40
"""Lines shown of a reply, likewise."""
SOLE = 1
"""Rollouts of a run whose lines need not name them."""


@dataclass(slots=True)
class _Shown:
    """How far the turns of a rollout are on the screen."""

    epoch: int
    phase: RolloutPhase
    num_ran: dict[int, int] = field(default_factory=dict)
    """Commands of each reply that is shown."""

    @property
    def first(self) -> int:
        """The call from which on something new may come: the newest, which still runs commands, or
        one before it that is not stored yet, as a program asks for several at once."""
        newest = max(self.num_ran, default=0)
        return next((n for n in range(newest) if n not in self.num_ran), newest)


class TurnWatch(RunWatch):
    """As `RunWatch`, with lines for each turn in the place of its panel."""

    _shown: dict[str, _Shown]
    _waits: tuple[str, ...]

    async def __aenter__(self) -> "TurnWatch":
        # Entered again where somebody started the run again just now: nothing is shown twice.
        self._shown = getattr(self, "_shown", {})
        self._waits = ()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    async def has_ended(self) -> bool:
        """Show what is new; whether the run is over."""
        record = await campaigns.get(self._db, self._campaign)  # first: what ended is then shown
        played = await rollouts.list_rollouts(self._db, campaign=self._campaign)
        for rollout in played:
            await self._show(rollout, is_named=len(played) > SOLE)
        await self._show_waits(record)
        return record.status in campaigns.ENDS

    async def _show(self, rollout: RolloutRecord, *, is_named: bool) -> None:
        before = self._shown.get(rollout.id)
        name = f" of {rollout.id}" if is_named else ""
        if before is None or before.epoch != rollout.epoch:
            begun = "begins" if before is None else f"begins again, attempt {rollout.epoch + 1}"
            self._say(f"rollout {rollout.id} of {rollout.task} {begun}")
            before = self._shown[rollout.id] = _Shown(rollout.epoch, RolloutPhase.STARTING)
        calls, ran = await turns.history(self._db, rollout.id, rollout.epoch, first=before.first)
        executions = by_call(ran)
        for call in calls:
            if call.number not in before.num_ran:
                self._show_reply(call, name)
            done = executions[call.number]
            for execution in done[before.num_ran.get(call.number, 0) :]:
                self._show_command(execution)
            before.num_ran[call.number] = len(done)
        if rollout.phase is not before.phase:
            before.phase = rollout.phase
            if rollout.phase is RolloutPhase.GRADING:
                self._say(f"grading the patch{name}")

    def _show_reply(self, call: Call, name: str) -> None:
        facts = [duration(call.latency_s)]
        counted = num_prompt_tokens(call), num_completion_tokens(call)
        if counted[0] is not None and counted[1] is not None:
            facts.insert(0, f"{counted[0]:,} + {counted[1]:,} tokens")
        self._console.rule(
            Text(plain(f"turn {call.number + 1}{name} ({'; '.join(facts)})")), align="left"
        )
        wrapped = [
            part
            for line in plain(call.text).expandtabs(4).splitlines()
            for part in textwrap.wrap(line, self._console.width, drop_whitespace=False) or [""]
        ]
        for line in shortened(wrapped, REPLY_LINES):
            self._say(line, style="")

    def _show_command(self, ran: Execution) -> None:
        width = self._console.width
        command = " ".join(plain(ran.command).split())
        self._say(textwrap.shorten(f"$ {command}", width, placeholder=" ..."), style="bold")
        lines = plain(ran.output.decode(errors="replace")).expandtabs(4).splitlines()
        for line in shortened(lines, OUTPUT_LINES):
            self._say(line if len(line) <= width else f"{line[: width - 4]} ...")
        code = "killed at its timeout" if ran.timed_out else f"exit {ran.returncode}"
        reward = "" if ran.reward is None else f", reward {ran.reward:g}"
        self._say(
            f"[{code}, {duration(ran.wall_s)}{reward}]", "dim" if ran.returncode == 0 else "red"
        )

    async def _show_waits(self, record: CampaignRecord) -> None:
        """Print what the run waits for, where that has changed."""
        moves = await self._look(record)
        if moves.lines != self._waits:
            self._waits = moves.lines
            for kind, line in zip(moves.kinds, moves.lines, strict=True):
                self._say(f"{kind.value}: {line}", "yellow" if kind is WaitKind.BLOCKED else "dim")

    def _say(self, text: str, style: str = "dim") -> None:
        self._console.print(Text(plain(text)), style=style, soft_wrap=True)


def shortened(lines: list[str], most: int) -> list[str]:
    """The beginning and the end of many lines, with the number of those between."""
    if len(lines) <= most:
        return lines
    first, last = most - most // 2, most // 2
    between = f"[... {len(lines) - first - last} lines more ...]"
    return [*lines[:first], between, *lines[-last:]]
