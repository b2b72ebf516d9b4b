"""Rollouts of a run page by page, with the counts of what a page can be narrowed to.

Read only. Pages follow each other by the key of their last row, so that a later one costs what the
first one does. Used by the viewer.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, case, cast, func, or_, select, tuple_

from infra.db.database import Database
from infra.db.reading.rollout_search import COLUMNS, Found
from infra.db.rollouts.labels import OF_ROLLOUT, has_label
from infra.db.tables.label_rows import LabelRow
from infra.db.tables.models import GroupRow, RolloutRow, StepGroupRow, TaskRow
from infra.db.tables.rollout_ends import DONE, MASKED, RESOLVED
from mainspring.config.any_run import AnyRun
from mainspring.config.run import RunConfig
from mainspring.ids import CampaignId, RolloutId

FACETS = ("state", "verdict", "stop", "version", "split", "step", "fault", "label", "agent", "task")
"""Names of what a page can be narrowed by, in the order in which they are shown."""
_LABEL = "label"
_OF_GROUP = ("version", "split", "step")
_OF_TASK = ("agent",)
_OF_ROLLOUT = tuple(name for name in FACETS if name not in (_LABEL, *_OF_GROUP, *_OF_TASK))
MANY = 1000
"""Rollouts are counted up to this number."""
FACET_VALUES = 12
"""Values of one facet that are shown, the most frequent first."""


@dataclass(frozen=True, slots=True)
class ListedRollout(Found):
    group: str
    created_at: datetime


LISTED = (*COLUMNS, RolloutRow.group_id, RolloutRow.created_at)
"""The fields of a ListedRollout, in their order."""
_STATE = case(
    (~DONE, cast(RolloutRow.phase, Text)),
    (MASKED, "masked"),
    (RESOLVED, "resolved"),
    else_="failed",
)
# "execute: SandboxLost": what follows differs by rollout.
_FAULT = func.coalesce(func.substring(RolloutRow.fault, "^[^:]*:[^:]*"), RolloutRow.fault)


@dataclass(frozen=True, slots=True)
class FoundPage:
    rows: tuple[ListedRollout, ...]
    after: RolloutId | None
    """Last row, where more follow it."""
    num_matching: int
    """At most MANY + 1."""


async def page(
    db: Database,
    campaign: CampaignId,
    config: AnyRun,
    chosen: Mapping[str, str],
    *,
    after: RolloutId | None = None,
    size: int = 50,
) -> FoundPage:
    """Rollouts for which all of `chosen` hold, the newest group first, from the one that follows
    `after`. `chosen`: values by name, of FACETS and of `group`."""
    conditions = _holding(campaign, _columns(config), chosen)
    async with db.snapshot() as connection:
        rows = await connection.execute(
            _joined(select(*LISTED))
            .where(*conditions, *(() if after is None else (_follows(after),)))
            .order_by(RolloutRow.created_at.desc(), RolloutRow.group_id, RolloutRow.sample_index)
            .limit(size + 1)
        )
        found = [ListedRollout(*row) for row in rows]
        matching = _joined(select(RolloutRow.id)).where(*conditions).limit(MANY + 1).subquery()
        total = await connection.scalar(select(func.count()).select_from(matching))
    after_last = found[size - 1].id if len(found) > size else None
    return FoundPage(tuple(found[:size]), after_last, total or 0)


async def facets(
    db: Database, campaign: CampaignId, config: AnyRun, chosen: Mapping[str, str]
) -> dict[str, list[tuple[str, int]]]:
    """Values of each of FACETS with their counts among all rollouts for which all of `chosen` hold,
    the most frequent first. Reads them all, so it costs more than a page."""
    columns = _columns(config)
    conditions = _holding(campaign, columns, chosen)
    counts: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    async with db.snapshot() as connection:
        # Three queries, each over some of the columns, as one over all takes twice as long.
        # Joining three tables to every rollout is half of the time: it is left out where it can be.
        is_plain = not {*_OF_GROUP, *_OF_TASK} & chosen.keys()
        is_of_run = is_plain and not _has_agents(config)
        for names, statement in (
            (_OF_GROUP, _counts_by_group(columns, conditions, is_plain)),
            (_OF_ROLLOUT, _counts(_OF_ROLLOUT, columns, conditions, is_plain)),
            (_OF_TASK, _counts(_OF_TASK, columns, conditions, is_of_run)),
        ):
            for *values, num in await connection.execute(statement):
                for name, value in zip(names, values, strict=True):
                    if value is not None:
                        counts[name].append((value, int(num)))
        labels = await connection.execute(_label_counts(conditions))
        counts[_LABEL] = [(name, num) for name, num in labels]
    return {
        name: sorted(counts[name], key=lambda each: (-each[1], each[0]))[:FACET_VALUES]
        for name in FACETS
    }


def _columns(config: AnyRun) -> dict[str, ColumnElement[str]]:
    return {
        "state": _STATE,
        "verdict": cast(RolloutRow.verdict, Text),
        "stop": cast(RolloutRow.stop_reason, Text),
        "version": cast(GroupRow.policy_version, Text),
        "split": cast(GroupRow.split, Text),
        "step": cast(StepGroupRow.step, Text),
        "fault": _FAULT,
        "agent": _agent(config),
        "task": cast(RolloutRow.task_id, Text),
        "group": cast(RolloutRow.group_id, Text),
    }


def _agent(config: AnyRun) -> ColumnElement[Any]:
    """Name of the agent that plays: it follows from the task's row and the configuration."""
    if not isinstance(config, RunConfig) or not _has_agents(config):
        kind = config.agent.kind if isinstance(config, RunConfig) else None
        return cast(kind, Text)
    of_row, of_set = func.nullif(TaskRow.spec["agent_name"].astext, ""), config.agents_of_sets
    others = [case(of_set, value=GroupRow.split)] if of_set else []
    return func.coalesce(of_row, *others, cast(config.agent.kind, Text))


def _joined(statement: Any) -> Any:
    return (
        statement.select_from(RolloutRow)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .join(TaskRow, TaskRow.id == RolloutRow.task_id)
        .outerjoin(
            StepGroupRow,
            and_(
                StepGroupRow.group_id == RolloutRow.group_id,
                StepGroupRow.campaign_id == RolloutRow.campaign_id,
            ),
        )
    )


def _has_agents(config: AnyRun) -> bool:
    """Whether tasks choose their agents."""
    return isinstance(config, RunConfig) and not config.agent.override


def _counts(
    names: Sequence[str],
    columns: Mapping[str, ColumnElement[str]],
    conditions: Sequence[Any],
    is_plain: bool,
) -> Any:
    """`is_plain`: nothing but the row of a rollout is needed."""
    inner = select(*(columns[name].label(name) for name in names))
    inner = (inner if is_plain else _joined(inner)).where(*conditions)
    facet = inner.subquery().c
    sets = [tuple_(facet[name]) for name in names]
    return select(*(facet[name] for name in names), func.count()).group_by(
        func.grouping_sets(*sets)
    )


def _counts_by_group(
    columns: Mapping[str, ColumnElement[str]], conditions: Sequence[Any], is_plain: bool
) -> Any:
    """Columns that all rollouts of a group share: each group is looked up once."""
    sizes = select(RolloutRow.group_id, func.count().label("num"))
    sizes = (sizes if is_plain else _joined(sizes)).where(*conditions)
    size = sizes.group_by(RolloutRow.group_id).subquery().c
    steps = and_(
        StepGroupRow.group_id == GroupRow.id, StepGroupRow.campaign_id == GroupRow.campaign_id
    )
    inner = (
        select(*(columns[name].label(name) for name in _OF_GROUP), size.num)
        .join(GroupRow, GroupRow.id == size.group_id)
        .outerjoin(StepGroupRow, steps)
    )
    facet = inner.subquery().c
    sets = [tuple_(facet[name]) for name in _OF_GROUP]
    return select(*(facet[name] for name in _OF_GROUP), func.sum(facet.num)).group_by(
        func.grouping_sets(*sets)
    )


def _label_counts(conditions: Sequence[Any]) -> Any:
    """A rollout may have several: it counts for each of them."""
    joined = _joined(select(LabelRow.name, func.count())).join(LabelRow, OF_ROLLOUT)
    return joined.where(*conditions).group_by(LabelRow.name)


def _holding(
    campaign: CampaignId, columns: Mapping[str, ColumnElement[str]], chosen: Mapping[str, str]
) -> list[ColumnElement[bool]]:
    return [
        RolloutRow.campaign_id == campaign,
        *(
            has_label(value) if name == _LABEL else columns[name] == value
            for name, value in chosen.items()
        ),
    ]


def _follows(after: RolloutId) -> ColumnElement[bool]:
    key = select(RolloutRow.created_at).where(RolloutRow.id == after).scalar_subquery()
    group = select(RolloutRow.group_id).where(RolloutRow.id == after).scalar_subquery()
    index = select(RolloutRow.sample_index).where(RolloutRow.id == after).scalar_subquery()
    return and_(
        RolloutRow.created_at <= key,
        or_(
            RolloutRow.created_at < key,
            RolloutRow.group_id > group,
            and_(RolloutRow.group_id == group, RolloutRow.sample_index > index),
        ),
    )
