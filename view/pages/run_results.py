"""Results of runs that train no policy by rollouts: evaluations, regrades, verifications, and
supervised runs.

Imported by `campaign`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from infra.db.fence import UnknownId
from infra.db.reading import evaluations
from infra.db.reading.evaluations import TokensSpent
from infra.db.runs.campaigns import CampaignRecord
from infra.db.tasks import verifications
from infra.db.training import policies, sft
from infra.db.training.sft import StoredSftData
from mainspring.config.run import RunConfig
from mainspring.ids import TaskId
from mainspring.rewards.paired import TaskTally
from mainspring.rewards.passk import PassAtK, pass_at_each_k
from mainspring.status import CampaignKind, Verification
from view.viewer import Viewer

T = TypeVar("T")
TASKS_SHOWN = 500


@dataclass(frozen=True, slots=True)
class TaskResult:
    task: str
    tally: TaskTally
    why: str
    """Why it is not what it should be; empty: it is, or that is not known."""
    verification: Verification | None = None

    @property
    def standing(self) -> str:
        if self.tally.num_scored == 0:
            return "running" if self.tally.num_unfinished else "masked"
        return "resolved" if self.tally.num_solved else "failed"


@dataclass(frozen=True, slots=True)
class RunResults:
    pass_at: Sequence[PassAtK]
    tally: TaskTally
    """Counts of all rollouts."""
    tasks: Sequence[TaskResult]
    """Those that were not resolved first."""
    num_tasks: int
    verifications: Mapping[str, int]
    """Tasks by what a verification found."""
    graded: str
    """Patches that a verification graded, in words."""
    data: StoredSftData | None
    """Samples of a supervised run."""
    model: str | None
    """Folder of a supervised run's newest model."""
    spent: TokensSpent | None = None
    dollars: float | None = None
    """None: the run has no price."""


async def results_of(viewer: Viewer, record: CampaignRecord) -> RunResults:
    if record.kind is CampaignKind.SFT:
        return await _supervised(viewer, record)
    config = record.config
    async with viewer.part("its tasks") as db:
        async with db.snapshot() as connection:
            by_task = await evaluations.by_task(connection, record.id)
            spent = await evaluations.tokens_spent(connection, record.id)
        faults = _by_name(await verifications.faults(db, record.id))
        if record.kind is CampaignKind.VERIFY:
            return await _verified(viewer, record, by_task, faults)
    tasks = [
        TaskResult(task, tally, faults.get(task, "") if tally.num_masked else "")
        for task, tally in by_task.items()
    ]
    tasks.sort(key=lambda each: (each.tally.num_solved > 0, each.tally.num_scored > 0, each.task))
    counts = [(each.num_scored, each.num_solved) for each in by_task.values() if each.num_scored]
    return RunResults(
        pass_at=pass_at_each_k(counts),
        tally=_together(by_task.values()),
        tasks=tasks[:TASKS_SHOWN],
        num_tasks=len(tasks),
        verifications={},
        graded="",
        data=None,
        model=None,
        spent=spent,
        dollars=spent.dollars(config.price if isinstance(config, RunConfig) else None),
    )


async def _verified(
    viewer: Viewer,
    record: CampaignRecord,
    by_task: Mapping[str, TaskTally],
    faults: Mapping[str, str],
) -> RunResults:
    async with viewer.part("what the verification found") as db:
        reasons = _by_name(await verifications.reasons(db, record.id))
        graded = verifications.in_words(await verifications.passes(db, record.id))
        found = _by_name(await verifications.in_run(db, record.id))
    told = {**faults, **reasons}
    tasks = [
        TaskResult(task, tally, told.get(task, ""), found.get(task, Verification.UNVERIFIED))
        for task, tally in by_task.items()
    ]
    tasks.sort(key=lambda each: (each.verification is Verification.VERIFIED, each.task))
    return RunResults(
        pass_at=(),
        tally=_together(by_task.values()),
        tasks=tasks[:TASKS_SHOWN],
        num_tasks=len(tasks),
        verifications=dict(Counter(str(each.verification) for each in tasks)),
        graded=graded,
        data=None,
        model=None,
    )


async def _supervised(viewer: Viewer, record: CampaignRecord) -> RunResults:
    async with viewer.part("the samples of the run") as db:
        try:
            data = await sft.data_of(db, record.id)
        except UnknownId:
            data = None  # its samples are not made yet
        newest = await policies.latest_policy(db, record.id)
    return RunResults(
        pass_at=(),
        tally=TaskTally(),
        tasks=(),
        num_tasks=0,
        verifications={},
        graded="",
        data=data,
        model=None if newest is None else newest.path,
    )


def _by_name(values: Mapping[TaskId, T]) -> dict[str, T]:
    return {str(task): value for task, value in values.items()}


def _together(tallies: Iterable[TaskTally]) -> TaskTally:
    total = TaskTally()
    for each in tallies:
        total = TaskTally(
            total.num_solved + each.num_solved,
            total.num_scored + each.num_scored,
            total.num_masked + each.num_masked,
            total.num_unfinished + each.num_unfinished,
        )
    return total
