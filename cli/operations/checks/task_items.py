"""Items of the checklist about the tasks of a new campaign: whether each of its sets has some that
it can use, and agents that play them.

Invariants: looking changes nothing; without Postgres only what can be known is told. Used by
`mainspring train` and `mainspring campaign start`, beside `cli.operations.checks.checklist`.
"""

from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches

from bundled.generator import make_tasks
from cli.operations.checks.agent_items import asked_items, context_items
from cli.operations.checks.checklist_item import Item, State
from cli.operations.checks.first_prompts import MAX_LOOKED, prompt_items
from infra.db.database import Database
from infra.db.tasks import tasks, verifications
from infra.db.tasks.tasks import Split
from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.config.tasks import TaskSet
from mainspring.status import Unverified, Verification
from mainspring.tasks.swe_task import SWE


async def of_the_tasks(config: CampaignConfig, db: Database | None) -> list[Item]:
    """Needs of a new campaign: room for its client; tasks in each of its sets, verified ones, none
    of which asks for another agent. Without `db` (it is down, or of an older schema) only what
    can be known."""
    items = context_items(config)
    sets = {label: config.task_set(label) for label in config.splits}
    for label, of in sets.items():
        if of.is_bundled and not of.num_listed:
            text = "no tasks; bundled ones have train, heldout and heldout_templates"
            fix = f"correct {_given_in(config, label)} in the file, or the number of its tasks"
            return [*items, Item(f"split {of.split}", State.MISSING, text, fix)]
    if any(of.is_bundled for of in sets.values()):
        items.append(Item("tasks", State.OK, f"bundled, made from seed {config.seed}"))
        items += prompt_items(
            config, "the bundled tasks", make_tasks(config.seed, "train", MAX_LOOKED)
        )
    own = {label: of for label, of in sets.items() if not of.is_bundled}
    if db is None:
        sources = dict.fromkeys(of.source for of in own.values())
        text, fix = "not checked: the database is not ready", "mainspring up"
        return [*items, *(Item(f"tasks of {each}", State.WARNING, text, fix) for each in sources)]
    stored = await tasks.list_splits(db) if own else []
    for label, of in own.items():
        items += await _of_set(db, config, label, of, stored)
    return items


async def _of_set(
    db: Database, config: CampaignConfig, label: str, of: TaskSet, stored: list[Split]
) -> list[Item]:
    what = f"tasks of {of.source}, split {of.split}"
    sizes = {row.split: row.num_tasks for row in stored if row.source == of.source}
    if of.split not in sizes:
        given = _given_in(config, label)
        fix = "import tasks (mainspring tasks import), or correct "
        fix += (
            f"tasks.source and {given} in the file" if given == _SPLITS else f"{given} in the file"
        )
        return [Item(what, State.MISSING, _there_are(of.source, sizes, stored), fix)]
    size = sizes[of.split]
    by_task = await verifications.verification_of(db, of.source, of.split)
    counts = Counter(by_task.values())
    num_good, num_flaky = counts[Verification.VERIFIED], counts[Verification.FLAKY]
    # Only SWE tasks have patches that could verify them.
    others = set(await tasks.ids_of_other_kinds(db, of.source, of.split, SWE))
    used = of.unverified is Unverified.USE
    if used and num_flaky and config.schedule is Schedule.REPRODUCIBLE:
        text = f"{num_flaky} of {size} are flaky: one patch got different verdicts"
        fix = 'remove unverified = "use", which leaves them out, or set schedule = "fastest"'
        item = Item(what, State.MISSING, text, fix)
    elif used:
        item = Item(what, State.OK, f"{size}, unverified ones are used as well")
    elif others:
        text = f"{len(others)} of {size} are of kinds that need no verification"
        text += f", {num_good} of the others are verified" if len(others) < len(by_task) else ""
        item = Item(what, State.OK, text)
    elif num_good:
        item = Item(what, State.OK, f"{num_good} of {size} verified")
    else:
        fix = f"mainspring tasks verify --source {of.source} --split {of.split}"
        item = Item(what, State.MISSING, f"{size}, none of them verified", fix)
    good = [
        id
        for id in list(by_task)[: of.num_listed]
        if used or id in others or by_task[id] is Verification.VERIFIED
    ]
    return [item, *await asked_items(db, config, f"the {what}", good[: of.limit], of.agent)]


_SPLITS = "evaluation.splits"


def _given_in(config: CampaignConfig, label: str) -> str:
    """The field that names these tasks."""
    for number, each in enumerate(config.tasks.sets):
        if each.label == label:
            return f"tasks.{number}"
    source = config.evaluation.source_of(label)
    return (
        _SPLITS
        if source is None
        else f"evaluation.sources.{config.evaluation.sources.index(source)}"
    )


def _there_are(source: str, sizes: Mapping[str, int], stored: list[Split]) -> str:
    if sizes:
        return "none; stored splits: " + ", ".join(f"{name} {num}" for name, num in sizes.items())
    near = get_close_matches(source, list(dict.fromkeys(row.source for row in stored)), 1)
    return "none; stored splits: none" + (f"; did you mean the source {near[0]!r}?" if near else "")
