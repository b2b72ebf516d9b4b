"""One rollout: its turns as a terminal, its tokens, patch, tests, times, and the record itself.

The address has the tab, the first turn and the epoch. Reads 20 turns at a time, whatever the
rollout's length. Imported by `pages`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from markupsafe import Markup

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.naming import rollout_named
from infra.db.reading import rollout_rail
from infra.db.reading.rollout_rail import RailCall, SandboxSpan
from infra.db.rollouts.labels import Marks
from infra.db.rollouts.rollouts import RolloutRecord
from mainspring.errors import UsageError
from mainspring.ids import RolloutId, rollout_workflow
from mainspring.status import RolloutPhase
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.swe_task import SweTask
from mainspring.training.trained_rollouts import TrainedRollout
from reports import one_rollout
from reports.one_rollout import CallRange, JudgementView, RolloutView, TurnView
from reports.program_view import ProgramView
from view.drawing.lanes import Lane, Span, lanes
from view.page import Page
from view.page_request import PageRequest, url
from view.pages.tokens import Colouring, TurnTokens, tokens_of
from view.standing import RolloutStanding, standing
from view.viewer import Viewer

TURNS_SHOWN = 20
TABS = ("turns", "tokens", "patch", "tests", "times", "raw")


@dataclass(frozen=True, slots=True)
class RailLine:
    call: RailCall
    turn: int
    """From 1."""
    is_shown: bool
    starts: bool
    """It begins a branch."""
    leaves: int | None
    """The turn that it continues, where that is not the one before it."""


@dataclass(frozen=True, slots=True)
class RolloutPage:
    record: RolloutRecord
    standing: RolloutStanding
    tab: str
    epoch: int
    """Epoch whose calls are shown."""
    epochs: Sequence[int]
    """Epochs that have calls."""
    split: str
    policy_version: int
    versions: Sequence[int]
    """Policy versions of the turns that are shown."""
    step: int | None
    """The step that trains on its group."""
    trained: TrainedRollout | None
    """Record of what that step did with it; None: nothing is stored."""
    agent: str | None
    issue: str
    before: RolloutId | None
    after: RolloutId | None
    """Neighbours in its group."""
    rail: Sequence[RailLine]
    num_prompt_tokens: int | None
    num_completion_tokens: int | None
    turns: Sequence[TurnView]
    first_turn: int
    previous_from: int | None
    next_from: int | None
    program: ProgramView | None
    judgements: Sequence[JudgementView]
    patch: str | None
    true_fix: str | None
    report: GradeReport | None
    grade_output: str | None
    lives: Sequence[SandboxSpan]
    tokens: Sequence[TurnTokens]
    colouring: Colouring | None
    marks: Marks
    """Labels and the note that people gave it."""
    workflow: str
    raw: Mapping[str, Any] | None

    @property
    def is_running(self) -> bool:
        return self.record.phase is not RolloutPhase.DONE

    def address(self, first: int | None = None, tab: str = "", by: str = "") -> str:
        """Address of turns of the same epoch, from `first` on."""
        return url(
            "r",
            self.record.id,
            tab="" if tab == TABS[0] else tab,
            by=by,
            epoch=None if self.epoch == self.record.epoch else self.epoch,
            **{"from": first},
        )

    def prose(self, turn: TurnView) -> str:
        """The reply without the fenced blocks of its commands, which stand below it."""
        reply = turn.reply
        for ran in turn.commands:
            block = re.compile(r"```\w*\n" + re.escape(ran.command.strip("\n")) + r"\s*```")
            reply = block.sub("", reply, count=1).strip()
        return reply

    @property
    def time_line(self) -> Markup:
        return lanes("What ran when", _lanes(self.record, self.rail, self.lives))


async def read(viewer: Viewer, asked: PageRequest) -> RolloutPage:
    tab = asked.query.get("tab", TABS[0])
    if tab not in TABS:
        raise UsageError(f"a rollout has no tab {tab!r}", remedy=f"choose from {', '.join(TABS)}")
    async with viewer.part("the outline of the rollout") as db:
        rollout = await rollout_named(db, asked.path["rollout"])
        record = await one_rollout.rollouts.get(db, rollout)
        epoch = asked.number("epoch", record.epoch) or 0
        async with db.snapshot() as connection:
            calls = await rollout_rail.calls(connection, rollout, epoch)
            lives = await rollout_rail.lives(connection, rollout)
            epochs = await rollout_rail.epochs(connection, rollout)
            step = await rollout_rail.step_of(connection, record.group)
            before, after = await rollout_rail.neighbours(
                connection, record.group, record.sample_index
            )
    if epoch != record.epoch and epoch not in epochs:
        raise UnknownId(
            f"rollout {rollout} has no epoch {epoch} with turns",
            remedy=f"it has {', '.join(map(str, epochs))}" if epochs else "it has no turns yet",
        )
    first = _first_shown(asked, calls, record)
    chosen = calls[first : first + TURNS_SHOWN]
    async with viewer.part("the turns of the rollout") as db:
        view = await one_rollout.read(db, rollout, only=_range(chosen), epoch=epoch)
        tokens, colouring = await _tokens(db, view, epoch, chosen, tab, asked)
    return _page(
        view,
        tab=tab,
        epoch=epoch,
        epochs=epochs,
        before=before,
        after=after,
        step=step,
        calls=calls,
        first=first,
        lives=lives,
        tokens=tokens,
        colouring=colouring,
    )


def _range(chosen: Sequence[RailCall]) -> CallRange:
    """No call has a number below 0."""
    return CallRange(chosen[0].number, chosen[-1].number) if chosen else CallRange(-1, -1)


def _first_shown(asked: PageRequest, calls: Sequence[RailCall], record: RolloutRecord) -> int:
    """Place of the first turn that is shown, from 0. While it is played, the newest ones."""
    num_calls = len(calls)
    turn = asked.number("turn")
    if turn is not None:  # by its number, which is not its place where numbers have gaps
        return next((n for n, call in enumerate(calls) if call.number + 1 >= turn), num_calls - 1)
    newest = max(0, num_calls - TURNS_SHOWN) if record.phase is not RolloutPhase.DONE else 0
    first = asked.number("from")
    if first is None:
        return newest
    return min(max(first - 1, 0), max(num_calls - 1, 0))


async def _tokens(
    db: Database,
    view: RolloutView,
    epoch: int,
    chosen: Sequence[RailCall],
    tab: str,
    asked: PageRequest,
) -> tuple[Sequence[TurnTokens], Colouring | None]:
    if tab != "tokens":
        return (), None
    return await tokens_of(
        db, view.record, epoch, _range(chosen), asked.query.get("by", ""), view.policy_version
    )


def _page(
    view: RolloutView,
    *,
    tab: str,
    epoch: int,
    epochs: Sequence[int],
    before: RolloutId | None,
    after: RolloutId | None,
    step: int | None,
    calls: Sequence[RailCall],
    first: int,
    lives: Sequence[SandboxSpan],
    tokens: Sequence[TurnTokens],
    colouring: Colouring | None,
) -> RolloutPage:
    record, task = view.record, view.task
    last = first + TURNS_SHOWN
    return RolloutPage(
        record=record,
        standing=standing(record.phase, record.stop_reason, record.verdict),
        tab=tab,
        epoch=epoch,
        epochs=epochs,
        split=view.split,
        policy_version=view.policy_version,
        versions=sorted({version for turn in view.turns for version in turn.policy_versions}),
        step=step,
        trained=None if view.training is None else view.training.trained,
        agent=view.agent,
        issue=task.issue,
        before=before,
        after=after,
        rail=[
            RailLine(
                call,
                call.number + 1,
                first <= place < last,
                starts=call.parent is None and place > 0,
                leaves=_leaves(calls, place),
            )
            for place, call in enumerate(calls)
        ],
        num_prompt_tokens=_sum([call.num_prompt_tokens for call in calls]),
        num_completion_tokens=_sum([call.num_completion_tokens for call in calls]),
        turns=view.turns,
        first_turn=first + 1,
        previous_from=max(1, first + 1 - TURNS_SHOWN) if first else None,
        next_from=last + 1 if last < len(calls) else None,
        program=view.program,
        judgements=view.judgements,
        patch=view.patch,
        true_fix=task.gold_patch if isinstance(task, SweTask) else None,
        report=view.report,
        grade_output=view.grade_output,
        lives=lives,
        tokens=tokens,
        colouring=colouring,
        marks=view.marks,
        workflow=rollout_workflow(record.id),
        raw=view.as_dict() if tab == "raw" else None,
    )


def _leaves(calls: Sequence[RailCall], place: int) -> int | None:
    parent = calls[place].parent
    if parent is None or place == 0 or calls[place - 1].number == parent:
        return None
    return parent + 1


def _sum(numbers: Sequence[int | None]) -> int | None:
    """None where one of them was not counted."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _lanes(
    record: RolloutRecord, rail: Sequence[RailLine], lives: Sequence[SandboxSpan]
) -> list[Lane]:
    ends: list[datetime] = [line.call.created_at for line in rail]
    ends += [life.closed_at for life in lives if life.closed_at]
    last = record.finished_at or max(ends, default=record.created_at)
    replies, commands = [], []
    for line in rail:
        call = line.call
        replies.append(_span("generate", f"turn {line.turn}", call.created_at, -call.latency_s))
        if call.wall_s:
            commands.append(_span("execute", f"turn {line.turn}", call.created_at, call.wall_s))
    rows = [Lane("replies", replies), Lane("commands", commands)]
    rows += [
        Lane(
            f"{life.purpose.value} on {life.node}",
            [
                Span(
                    life.purpose.value if life.status.value != "lost" else "lost",
                    f"sandbox {life.id}, {life.status.value}",
                    life.opened_at,
                    max(life.closed_at or last, life.opened_at),
                )
            ],
        )
        for life in lives
    ]
    return [row for row in rows if row.spans]


def _span(kind: str, word: str, at: datetime, seconds: float) -> Span:
    other = at + timedelta(seconds=seconds)
    return Span(kind, word, min(at, other), max(at, other))


PAGES = (Page("/r/{rollout:whole}", "rollout.html.j2", read),)
