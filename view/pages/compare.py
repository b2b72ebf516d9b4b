"""Two rollouts beside each other from where they part, or two runs with what differs.

Imported by `pages`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from infra.db.database import Database
from infra.db.naming import campaign_named, rollout_named
from infra.db.reading import evaluations, trained_steps
from infra.db.reading.evaluations import Evaluation
from infra.db.reading.trained_steps import Step
from infra.db.rollouts import rollouts, turns
from infra.db.rollouts.rollouts import RolloutRecord
from infra.db.runs.campaigns import CampaignRecord
from mainspring.errors import UsageError
from mainspring.ids import RolloutId
from mainspring.rewards.paired import Paired, paired
from mainspring.status import CampaignKind, CampaignStatus
from mainspring.tasks.criterion import GradeReport
from mainspring.trajectories.turns import by_call
from view.drawing.plots import PlotLine
from view.page import Page
from view.page_request import PageRequest
from view.pages.config import FieldLine, differences
from view.viewer import Viewer

TURNS = 60
TASKS_NAMED = 200
MEASURED = (CampaignKind.EVAL, CampaignKind.REGRADE)


@dataclass(frozen=True, slots=True)
class ComparedTurn:
    turn: int
    reply: str
    commands: Sequence[str]
    returncodes: Sequence[int]


@dataclass(frozen=True, slots=True)
class ComparedRollout:
    record: RolloutRecord
    turns: Sequence[ComparedTurn]
    num_turns: int
    patch: str | None
    report: GradeReport | None

    @property
    def failed(self) -> set[str]:
        """Tests that fail with its patch."""
        if self.report is None:
            return set()
        return {*self.report.fail_to_pass_failed, *self.report.pass_to_pass_failed}


@dataclass(frozen=True, slots=True)
class RolloutsCompared:
    a: ComparedRollout
    b: ComparedRollout
    parts_at: int | None
    """The first turn whose commands differ; None: none does."""

    @property
    def rows(self) -> list[tuple[int, ComparedTurn | None, ComparedTurn | None]]:
        """Turns of both sides, by number; None: that side has ended before."""
        both = zip_longest(self.a.turns, self.b.turns)
        return [(n, one, other) for n, (one, other) in enumerate(both, start=1)]


@dataclass(frozen=True, slots=True)
class ComparedRun:
    id: str
    kind: CampaignKind
    status: CampaignStatus
    steps: Sequence[Step]
    evaluations: Sequence[Evaluation]


@dataclass(frozen=True, slots=True)
class RunsCompared:
    a: ComparedRun
    b: ComparedRun
    fields: Sequence[FieldLine]
    paired: Paired | None
    """Tasks of two evaluations; None: one of the runs is none, or they have no task in common."""
    won: Sequence[str]
    """Tasks that `b` resolves more often."""
    lost: Sequence[str]

    def lines(self, figure: str) -> list[PlotLine]:
        return [
            PlotLine(run.id, [(step.step, step.metrics.get(figure)) for step in run.steps])
            for run in (self.a, self.b)
        ]


@dataclass(frozen=True, slots=True)
class ComparePage:
    rollouts: RolloutsCompared | None
    runs: RunsCompared | None


async def read(viewer: Viewer, asked: PageRequest) -> ComparePage:
    named = [asked.all_values.get(name, ()) for name in ("r", "c")]
    if sorted(map(len, named)) != [0, 2]:
        raise UsageError(
            "a comparison is of two rollouts or of two runs",
            remedy="give /compare?r=ROLLOUT&r=ROLLOUT or /compare?c=RUN&c=RUN",
        )
    if named[0]:
        async with viewer.part("the two rollouts") as db:
            a, b = [await _rollout(db, await rollout_named(db, name)) for name in named[0]]
        return ComparePage(RolloutsCompared(a, b, _parts_at(a, b)), None)
    async with viewer.part("the two runs") as db:
        records = [await campaign_named(db, name) for name in named[1]]
        return ComparePage(None, await _runs(db, *records))


async def _rollout(db: Database, id: RolloutId) -> ComparedRollout:
    record = await rollouts.get(db, id)
    replies, executions = await turns.history(db, id, record.epoch, 0, TURNS - 1)
    patch, ran = await rollouts.get_final_patch(db, id), by_call(executions)
    return ComparedRollout(
        record=record,
        turns=[
            ComparedTurn(
                reply.number + 1,
                reply.text,
                [each.command for each in ran[reply.number]],
                [each.returncode for each in ran[reply.number]],
            )
            for reply in replies
        ],
        num_turns=record.num_turns,
        patch=None if patch is None else patch.decode(errors="replace"),
        report=await rollouts.get_grade_report(db, id),
    )


def _parts_at(a: ComparedRollout, b: ComparedRollout) -> int | None:
    for place, (one, other) in enumerate(zip(a.turns, b.turns, strict=False)):
        if one.commands != other.commands or (not one.commands and one.reply != other.reply):
            return place + 1
    if len(a.turns) == len(b.turns):
        return None
    return min(len(a.turns), len(b.turns)) + 1


async def _runs(db: Database, a: CampaignRecord, b: CampaignRecord) -> RunsCompared:
    compared = []
    async with db.snapshot() as connection:
        for record in (a, b):
            compared.append(
                ComparedRun(
                    record.id,
                    record.kind,
                    record.status,
                    await trained_steps.read(connection, record.id),
                    await evaluations.read(connection, record.id),
                )
            )
        pairs = None
        if a.kind in MEASURED and b.kind in MEASURED:
            pairs = paired(
                await evaluations.by_task(connection, a.id),
                await evaluations.by_task(connection, b.id),
            )
    if pairs is not None and not pairs.pairs:
        pairs = None
    return RunsCompared(
        a=compared[0],
        b=compared[1],
        fields=differences(a, b),
        paired=pairs,
        won=[pair.task for pair in pairs.better_in_b[:TASKS_NAMED]] if pairs else (),
        lost=[pair.task for pair in pairs.better_in_a[:TASKS_NAMED]] if pairs else (),
    )


PAGES = (Page("/compare", "compare.html.j2", read),)
