"""Which split of a task set a command means, and which of its tasks a run goes over.

Invariant: there is no default split. A set with one split needs no `--split`; of several, one must
be given, and the error lists them. Imported by the commands that go over one split, and by what
stores a run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from bundled.generator import Split, make_tasks
from cli.operations.checks.pass_rate_checks import refuse_pass_rates
from infra.db.database import Database
from infra.db.tasks import selections, tasks
from infra.db.tasks.selections import OverTasks, Selected
from mainspring.config.campaign import CampaignConfig
from mainspring.config.run import RunConfig
from mainspring.config.section import BUNDLED
from mainspring.errors import UsageError
from mainspring.ids import TaskId
from mainspring.status import Exclusion

SPLITS: tuple[Split, ...] = ("train", "heldout", "heldout_templates")
NUM_LISTED = 10
"""Task sets named in an error; more would hide the message."""


async def chosen_split(db: Database, source: str, choice: str | None) -> str:
    """`choice`, or the only split of `source`. Raises UsageError."""
    if source == BUNDLED:
        if choice is None:
            raise _ambiguous(source, list(SPLITS))
        return choice
    stored = await tasks.list_splits(db)
    sizes = {row.split: row.num_tasks for row in stored if row.source == source}
    if choice in sizes:
        return choice
    if not sizes:
        sources = list(dict.fromkeys(row.source for row in stored))
        raise UsageError(
            f"no tasks of source {source!r} are stored"
            + (f"; stored sources: {', '.join(sources[:NUM_LISTED])}" if sources else ""),
            remedy="import tasks with `mainspring tasks import`, or correct --source",
        )
    listed = [f"{split} {number}" for split, number in sizes.items()]
    if choice is not None:
        raise UsageError(
            f"source {source!r} has no tasks in split {choice!r}; splits: {', '.join(listed)}",
            remedy="correct --split",
        )
    if len(sizes) > 1:
        raise _ambiguous(source, listed)
    return next(iter(sizes))


def _ambiguous(source: str, listed: list[str]) -> UsageError:
    return UsageError(
        f"source {source!r} has several splits: {', '.join(listed)}", remedy="choose one: --split"
    )


async def select(db: Database, config: OverTasks, made_now: Sequence[str]) -> list[Selected]:
    """The tasks of its splits, excluded ones among them; bundled ones of `made_now` are
    generated first. Raises UsageError when a split has none to use."""
    sets = [config.task_set(label) for label in config.splits]
    made = {of.split for of in sets if of.is_bundled}
    made |= {*SPLITS} if config.tasks.source == BUNDLED else set()
    for split in SPLITS:
        if split in made.intersection(made_now):
            generated = make_tasks(config.seed, split, config.size_in(BUNDLED, split) or 0)
            source = config.listed_as(BUNDLED)
            await tasks.put_tasks(
                db, [task.model_copy(update={"source": source}) for task in generated]
            )
    selected: list[Selected] = []
    for split in config.splits:
        chosen = await selections.choose(db, config, split)
        await _check_chosen(db, config, split, chosen)
        selected += chosen
    return selected


def ids_of(selected: Sequence[Selected]) -> list[TaskId]:
    return [task.task_id for task in selected if task.position is not None]


def by_agent(config: RunConfig, selected: Sequence[Selected]) -> dict[str | None, list[TaskId]]:
    """The tasks that are used, by the agent of those among them that ask for none; None: the
    section [agent]."""
    found: dict[str | None, list[TaskId]] = {}
    for each in selected:
        if each.position is not None:
            found.setdefault(config.task_set(each.split).agent, []).append(each.task_id)
    return found


async def _check_chosen(
    db: Database, config: OverTasks, label: str, chosen: list[Selected]
) -> None:
    of = config.task_set(label)
    split = of.split
    what = f"campaign {config.name}: source {of.source!r} has no tasks in split {split!r}"
    if not chosen:
        cut = None if isinstance(config, CampaignConfig) else config
        what += f" within {cut.slice}" if cut is not None and cut.slice else ""
        listed = await tasks.task_ids(db, of.source, split, limit=1)
        if cut is not None and cut.task and listed:
            raise UsageError(
                f"{what} whose id matches {cut.task!r}",
                remedy=f"correct --task, a regular expression; an id looks like {listed[0]!r}",
            )
        sources = {row.source for row in await tasks.list_splits(db)}
        if of.source not in sources and (near := get_close_matches(of.source, sorted(sources), 1)):
            what += f"; did you mean the source {near[0]!r}?"
        raise UsageError(
            what,
            remedy="import the tasks first (`mainspring tasks list` shows what is stored), or "
            "correct the names of source and splits",
        )
    if all(task.position is None for task in chosen):
        by_rate = Counter(task.exclusion for task in chosen)
        if isinstance(config, CampaignConfig) and by_rate[Exclusion.VERIFICATION] < len(chosen):
            refuse_pass_rates(config, label, by_rate)
        counts = Counter(task.verification for task in chosen)
        where = "in [tasks]" if of.split == label else f"beside the source of {label!r}"
        raise UsageError(
            f"{what} that are verified: {counted(counts)}",
            remedy=f"run `mainspring tasks verify --source {of.source} --split {split}`, "
            f'or set unverified = "use" {where}',
        )


def counted(counts: Mapping[Any, int]) -> str:
    return ", ".join(
        f"{number} {str(word).replace('_', ' ')}" for word, number in counts.items() if number
    )
