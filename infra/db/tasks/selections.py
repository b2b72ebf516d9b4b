"""Which tasks a campaign uses, and which it excludes by their verification or their pass rate.

Invariant: the selection is stored with the campaign and never changes, whatever is imported or
verified meanwhile: groups pick their tasks by position. A campaign stored without one uses every
task of its source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from sqlalchemy import (
    ARRAY,
    CompoundSelect,
    Integer,
    Text,
    any_,
    case,
    cast,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.tables.models import RolloutRow, SelectionRow, TaskRow
from infra.db.tables.rollout_ends import RESOLVED, SCORED
from infra.db.tasks import tasks
from infra.db.tasks.verifications import verification_of
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.run import RunConfig
from mainspring.ids import CampaignId, TaskId
from mainspring.status import Exclusion, Unverified, Verification
from mainspring.tasks.swe_task import SWE

OverTasks = CampaignConfig | EvaluationConfig | VerificationConfig
"""Runs that go over tasks; a regrade goes over patches."""
_ALL_POSITIONS = 2**31 - 1
_AGENT_NAME = func.nullif(TaskRow.spec["agent_name"].astext, "")


@dataclass(frozen=True, slots=True)
class Selected:
    task_id: TaskId
    split: str
    """Its label in the campaign: a split, or the name of a source."""
    position: int | None
    """Among the campaign's tasks of this split; None: excluded."""
    verification: Verification | None
    exclusion: Exclusion | None = None


@dataclass(frozen=True, slots=True)
class AskedFor:
    """Tasks of one kind that ask for the same agent (`agent_name` of their rows)."""

    kind: str
    agent: str | None
    """None: they ask for none."""
    num_tasks: int
    example: TaskId


async def asked_for(
    db: Database, ids: Sequence[TaskId], agent: str | None = None
) -> list[AskedFor]:
    """These tasks by kind and by the agent that they ask for; those that ask for none ask for
    `agent`."""
    kind, name = tasks.KIND.label("kind"), _AGENT_NAME.label("name")
    counted = (
        select(kind, name, func.count(), func.min(TaskRow.id))
        .where(TaskRow.id == any_(literal(list(ids), ARRAY(Text))))
        .group_by(kind, name)
        .order_by(kind, name.nulls_first())
    )
    async with db.transaction() as connection:
        rows = await connection.execute(counted)
        return [
            AskedFor(kind, name or agent, number, TaskId(first))
            for kind, name, number, first in rows
        ]


async def with_tools(db: Database, ids: Sequence[TaskId]) -> list[TaskId]:
    """The first task for each choice of tools, and of an agent, that rows name."""
    tools, agent = TaskRow.spec["tools"].astext, TaskRow.spec["agent_name"].astext
    statement = (
        select(func.min(TaskRow.id))
        .where(
            TaskRow.id == any_(literal(list(ids), ARRAY(Text))),
            func.coalesce(tools, "[]") != "[]",
        )
        .group_by(tools, agent)
        .order_by(func.min(TaskRow.id))
    )
    async with db.transaction() as connection:
        return [TaskId(ident) for (ident,) in await connection.execute(statement)]


@dataclass(frozen=True, slots=True)
class OfKind:
    num_tasks: int
    example: TaskId


async def kinds(db: Database, ids: Sequence[TaskId]) -> dict[str, OfKind]:
    """These tasks by kind, which tells their environment."""
    kind = tasks.KIND.label("kind")
    counted = (
        select(kind, func.count(), func.min(TaskRow.id))
        .where(TaskRow.id == any_(literal(list(ids), ARRAY(Text))))
        .group_by(kind)
        .order_by(kind)
    )
    async with db.transaction() as connection:
        rows = await connection.execute(counted)
        return {kind: OfKind(number, TaskId(example)) for kind, number, example in rows}


async def with_hidden_past(
    db: Database, ids: Sequence[TaskId], agent: str | None = None
) -> list[AskedFor]:
    """Tasks whose sandbox hides what its image or its patch would tell, by the agent that they ask
    for; those that ask for none ask for `agent`."""
    base_patch, hidden = TaskRow.spec["base_patch"].astext, TaskRow.spec["hidden_files"].astext
    statement = (
        select(_AGENT_NAME.label("name"), func.count(), func.min(TaskRow.id))
        .where(
            TaskRow.id == any_(literal(list(ids), ARRAY(Text))),
            or_(func.coalesce(base_patch, "") != "", func.coalesce(hidden, "[]") != "[]"),
        )
        .group_by("name")
    )
    async with db.statement() as connection:
        rows = await connection.execute(statement)
        return [AskedFor(SWE, name or agent, number, TaskId(first)) for name, number, first in rows]


async def num_with_image(db: Database, ids: Sequence[TaskId]) -> int:
    """How many of these tasks name an image."""
    have_one = select(func.count()).where(
        TaskRow.id == any_(literal(list(ids), ARRAY(Text))),
        TaskRow.spec["image"].astext.is_not(None),
    )
    async with db.transaction() as connection:
        return await connection.scalar(have_one) or 0


async def choose(db: Database, config: OverTasks, label: str) -> list[Selected]:
    """The tasks under this label (a split, or the name of a source) that the configuration asks
    for, in its order, those to exclude marked."""
    of = config.task_set(label)
    ids = await tasks.task_ids(db, of.source, of.split, limit=of.num_listed)
    match config:
        case CampaignConfig():
            takes_any, limit = False, of.limit
        case EvaluationConfig():
            ids, takes_any, limit = config.in_order(ids), False, config.limit
        case VerificationConfig():
            ids, takes_any, limit = config.in_order(ids), True, config.limit
        case _:
            assert_never(config)
    # Every bundled task was solved by its generator.
    uses_all = of.unverified is Unverified.USE or of.is_bundled
    verifications: Mapping[TaskId, Verification] = {}
    of_other_kinds = ids
    if not (takes_any or uses_all):
        verifications = await verification_of(db, of.source, of.split)
        # Only SWE tasks have patches that could verify them.
        of_other_kinds = await tasks.ids_of_other_kinds(db, of.source, of.split, SWE)
    excluded = dict.fromkeys(ids)
    if isinstance(config, CampaignConfig) and label == "train" and config.curriculum.pass_rates_of:
        excluded |= await _by_pass_rate(db, config, ids)
    unjudged = set(of_other_kinds)
    selected: list[Selected] = []
    position = 0
    for id in ids:
        if position == limit:
            break
        verification = None if id in unjudged else verifications[id]
        exclusion = excluded[id]
        if verification not in (None, Verification.VERIFIED):
            exclusion = Exclusion.VERIFICATION
        place = position if exclusion is None else None
        selected.append(Selected(id, label, place, verification, exclusion))
        position += exclusion is None
    return selected


async def _by_pass_rate(
    db: Database, config: CampaignConfig, ids: Sequence[TaskId]
) -> dict[TaskId, Exclusion | None]:
    """Why each of the tasks is excluded; None: it is not."""
    bounds = config.curriculum
    rates = await pass_rates(db, CampaignId(bounds.pass_rates_of))

    def exclusion(rate: float | None) -> Exclusion | None:
        if rate is None:
            return Exclusion.NO_PASS_RATE
        if rate < bounds.min_pass_rate:
            return Exclusion.PASS_RATE_LOW
        return Exclusion.PASS_RATE_HIGH if rate > bounds.max_pass_rate else None

    return {id: exclusion(rates.get(id)) for id in ids}


async def left_out(db: Database, campaign: CampaignId) -> dict[str, int]:
    """How many tasks the campaign does not use, by why: a word of Exclusion, or what was known of
    their verification."""
    by_rate = SelectionRow.exclusion != Exclusion.VERIFICATION
    why = case((by_rate, SelectionRow.exclusion), else_=SelectionRow.verification).label("why")
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(cast(why, Text).label("why"), func.count())
            .where(SelectionRow.campaign_id == campaign, SelectionRow.position.is_(None))
            .group_by(literal_column("why"))
            .order_by(literal_column("why"))
        )
        return dict(rows.tuples().all())


async def task_ids(
    db: Database,
    config: RunConfig,
    split: str,
    first: int = 0,
    number: int | None = None,
) -> list[TaskId]:
    """`number` of the campaign's tasks of `split` from position `first` on, in order."""
    async with db.transaction() as connection:
        chosen = _chosen(config, split).subquery()
        ids = await connection.scalars(
            select(chosen.c.id).order_by(chosen.c.position).offset(first).limit(number)
        )
        return [TaskId(id) for id in ids]


async def size(connection: AsyncConnection, config: RunConfig, split: str) -> int:
    """How many tasks of `split` the campaign uses."""
    chosen = _chosen(config, split).subquery()
    return await connection.scalar(select(func.count()).select_from(chosen)) or 0


async def task_at(
    connection: AsyncConnection, config: RunConfig, split: str, position: int
) -> TaskId | None:
    """The campaign's task at this position of `split`; None beyond the last."""
    chosen = _chosen(config, split).subquery()
    task = await connection.scalar(select(chosen.c.id).where(chosen.c.position == position))
    return None if task is None else TaskId(task)


def _chosen(config: RunConfig, split: str) -> CompoundSelect[Any]:
    """The campaign's tasks and their positions; without a stored selection, the whole listing."""
    stored = select(SelectionRow.task_id.label("id"), SelectionRow.position).where(
        SelectionRow.campaign_id == config.name,
        SelectionRow.split == split,
        SelectionRow.position.is_not(None),
    )
    num_listed = config.split_size(split)
    listing = select(TaskRow.id, TaskRow.position).where(
        TaskRow.source == config.task_source,
        TaskRow.split == split,
        TaskRow.position < literal(_ALL_POSITIONS if num_listed is None else num_listed, Integer),
        ~exists().where(SelectionRow.campaign_id == config.name),
    )
    return union_all(stored, listing)


async def pass_rates(db: Database, evaluation: CampaignId) -> dict[TaskId, float]:
    """Solved part of each task's scored rollouts; tasks without a scored one are missing."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(RolloutRow.task_id, func.count().filter(RESOLVED), func.count())
            .where(RolloutRow.campaign_id == evaluation, SCORED)
            .group_by(RolloutRow.task_id)
        )
        return {TaskId(task): solved / scored for task, solved, scored in rows}
