"""Searching what agents did: the places where words stand, newest rollout first, with counts.

Read only. A page looks at WINDOW places that have the words, and at no more, however many there
are: each page costs the same. Pages follow each other by the key of the last place. Used by the
viewer and the command line.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    and_,
    cast,
    func,
    literal,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import aliased

from infra.db.database import Database
from infra.db.rollouts import search_texts
from infra.db.rollouts.labels import has_label
from infra.db.rollouts.search_pieces import CONFIGURATION, MARKED
from infra.db.tables.models import GroupRow, RolloutRow, StepGroupRow
from infra.db.tables.search_rows import SearchPieceRow
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, RolloutId, TaskId
from mainspring.status import StopReason, Verdict
from mainspring.trajectories.search_query import (
    SearchCondition,
    SearchKey,
    SearchPart,
    SearchQuery,
    Words,
    snippet,
)

WINDOW = 1000
"""Places that a page looks at."""
LOOKED = 60_000
"""Newest pieces that are looked through first, which have enough of a frequent word; all places of
a rarer one are read from the index of words."""
COUNTED = 12
"""Tasks and steps that are listed with their counts, those with most rollouts first."""
_CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})")
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_PIECE = SearchPieceRow
_NEWEST = (_PIECE.at.desc(), _PIECE.id.desc())
_LIGHT = ("id", "rollout_id", "epoch", "part", "call", "index", "returncode", "at")
_OF_PIECE = (SearchKey.PART, SearchKey.EXIT, SearchKey.CAMPAIGN)


@dataclass(frozen=True, slots=True)
class SearchHit:
    rollout: RolloutId
    campaign: CampaignId
    task: TaskId
    part: SearchPart
    call: int | None
    """Number of the call; None: the patch or the tests."""
    returncode: int | None
    """Exit code of the command."""
    verdict: Verdict | None
    stop_reason: StopReason | None
    policy_version: int
    step: int | None
    """The step that trained on it."""
    finished_at: datetime
    before: str
    """Excerpt of the text, up to the words."""
    found: str
    """The words as they stand in it; empty where only conditions were asked for."""
    after: str

    @property
    def turn(self) -> int | None:
        return None if self.call is None else self.call + 1


@dataclass(frozen=True, slots=True)
class SearchFound:
    hits: tuple[SearchHit, ...]
    num_places: int
    """Places of this page's window, at most WINDOW; all counts are of it."""
    is_more: bool
    """The window was full: there may be more than is counted."""
    num_rollouts: int
    num_tasks: int
    first_step: int | None
    tasks: tuple[tuple[str, int], ...]
    """Tasks with the number of their rollouts."""
    steps: tuple[tuple[int, int], ...]
    after: str | None
    """Where the next page begins; None: this is the last one."""

    def counts(self) -> str:
        """Counts as a sentence."""
        many = "more than " if self.is_more else ""
        least = "at least " if self.is_more else ""
        step = "" if self.first_step is None else f", first at step {self.first_step}"
        return (
            f"{many}{self.num_places:,} place{'s' * (self.num_places != 1)} in {least}"
            f"{self.num_rollouts:,} rollout{'s' * (self.num_rollouts != 1)} of {least}"
            f"{self.num_tasks:,} task{'s' * (self.num_tasks != 1)}{step}"
        )

    def nothing(self) -> str:
        """Sentence for a page without a hit."""
        return (
            f"nothing matches among the newest {WINDOW:,} places with these words: narrow it with "
            "campaign:, or add a word"
            if self.is_more
            else "nothing matches"
        )


async def search(
    db: Database, query: SearchQuery, *, after: str | None = None, size: int = 20
) -> SearchFound:
    """Places where all of the query holds. `after`: of the page before. Raises UsageError and
    DatabaseError."""
    key = None if not after else _read_cursor(after)
    async with db.snapshot() as connection:
        rows = await _window(connection, query, key)
        of_rollout = [row for row in rows if row.holds]
        shown = of_rollout[:size]
        texts = await _texts(connection, shown)
    is_full = len(rows) == WINDOW
    last = shown[-1] if len(of_rollout) > size else rows[-1] if is_full else None
    tasks = Counter(task for _, task in {(row.rollout_id, row.task_id) for row in of_rollout})
    steps = Counter(step for _, step in {(r.rollout_id, r.step) for r in of_rollout if r.step})
    return SearchFound(
        hits=tuple(_hit(row, query.wanted, texts) for row in shown),
        num_places=len(of_rollout),
        is_more=is_full,
        num_rollouts=len({row.rollout_id for row in of_rollout}),
        num_tasks=len(tasks),
        first_step=min(steps, default=None),
        tasks=tuple(tasks.most_common(COUNTED)),
        steps=tuple(sorted(steps.most_common(COUNTED))),
        after=None if last is None else _cursor(last.at, last.id),
    )


async def _window(
    connection: AsyncConnection, query: SearchQuery, key: tuple[datetime, int] | None
) -> Sequence[Any]:
    """The newest WINDOW pieces for which the conditions on pieces hold, those before `key`; in
    `holds` whether those on rollouts hold, too."""
    on_pieces = [each for each in query.conditions if each.key in _OF_PIECE]
    on_rollouts = [each for each in query.conditions if each.key not in _OF_PIECE]
    of_run = [_is(each) for each in on_pieces if each.key is SearchKey.CAMPAIGN]
    before = () if key is None else (tuple_(_PIECE.at, _PIECE.id) < tuple_(*map(literal, key)),)
    asked, is_positive = _asked(query, on_pieces)
    rows: Sequence[Any] = ()
    for whole in (False, True):
        if whole and is_positive:
            # From the index of words whatever is expected of them, and as a whole: else it may be
            # read along the time of all pieces.
            await connection.execute(text("SET LOCAL enable_seqscan = off"))
            holding = [*_holding(asked, on_pieces, _PIECE), *before]
            piece: Any = _light(_PIECE, holding).cte().prefix_with("MATERIALIZED").c
            holding = []
        else:
            newest = select(_PIECE).where(*of_run, *before).order_by(*_NEWEST)
            piece = aliased(_PIECE, (newest if whole else newest.limit(LOOKED)).subquery())
            holding = _holding(asked, on_pieces, piece)
        window = (
            _light(piece, holding)
            .order_by(piece.at.desc(), piece.id.desc())
            .limit(WINDOW)
            .subquery("window")
        )
        holds = and_(RolloutRow.epoch == window.c.epoch, *(_is(each) for each in on_rollouts))
        rows = (await connection.execute(_joined(window, holds))).all()
        if len(rows) == WINDOW:
            break
    return rows


def _light(piece: Any, holding: Sequence[ColumnElement[bool]]) -> Select[Any]:
    return select(*(getattr(piece, name) for name in _LIGHT)).where(*holding)


def _holding(
    asked: Any, on_pieces: Sequence[SearchCondition], piece: Any
) -> Sequence[ColumnElement[bool]]:
    words = [] if asked is None else [piece.words.op("@@")(asked)]
    return [*words, *(_is(each, piece) for each in on_pieces)]


def _asked(query: SearchQuery, on_pieces: Sequence[SearchCondition]) -> tuple[Any, bool]:
    """All words and marks of the query as one question to the index; None: it has none. And whether
    there is one among them that a piece must have: the index has no list of what lacks a word."""
    marks = [
        cast(literal(f"'{each.key}:{each.value}'", Text), TSQUERY)
        for each in on_pieces
        if each.key in MARKED and each.op == "="
    ]
    terms = [*map(_term, query.words), *marks]
    asked = reduce(func.tsquery_and, terms) if terms else None
    return asked, bool(query.wanted or marks)


def _joined(window: Any, holds: ColumnElement[bool]) -> Select[Any]:
    return (
        select(
            window,
            RolloutRow.campaign_id,
            RolloutRow.task_id,
            RolloutRow.verdict,
            RolloutRow.stop_reason,
            GroupRow.policy_version,
            StepGroupRow.step,
            func.coalesce(holds, literal(False)).label("holds"),
        )
        .select_from(window)
        .join(RolloutRow, RolloutRow.id == window.c.rollout_id)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .outerjoin(
            StepGroupRow,
            and_(
                StepGroupRow.group_id == RolloutRow.group_id,
                StepGroupRow.campaign_id == RolloutRow.campaign_id,
            ),
        )
        .order_by(window.c.at.desc(), window.c.id.desc())
    )


def _term(words: Words) -> Any:
    asked: Any = func.phraseto_tsquery(CONFIGURATION, words.text)
    if words.is_beginning:
        asked = cast(cast(asked, Text).op("||")(literal(":*", Text)), TSQUERY)
    return func.tsquery_not(asked) if words.is_negated else asked


def _is(condition: SearchCondition, piece: Any = _PIECE) -> ColumnElement[bool]:
    if condition.key is SearchKey.LABEL:
        has = has_label(str(condition.value))
        return ~has if condition.op == "!=" else has
    column: Any = {
        SearchKey.PART: piece.part,
        SearchKey.EXIT: piece.returncode,
        SearchKey.CAMPAIGN: piece.campaign_id,
        SearchKey.VERDICT: RolloutRow.verdict,
        SearchKey.STOP: RolloutRow.stop_reason,
        SearchKey.VERSION: GroupRow.policy_version,
        SearchKey.STEP: StepGroupRow.step,
        SearchKey.TASK: RolloutRow.task_id,
    }[condition.key]
    if condition.key is SearchKey.TASK:
        contains = column.contains(str(condition.value), autoescape=True)
        return ~contains if condition.op == "!=" else contains
    if condition.op in ("=", "!="):
        is_same = column == condition.value
        # One without a verdict is not resolved, but one without an exit code has none.
        differs = is_same.is_not(True) if isinstance(condition.value, str) else ~is_same
        return differs if condition.op == "!=" else is_same
    return column.op(condition.op, is_comparison=True)(condition.value)


async def _texts(
    connection: AsyncConnection, shown: Sequence[Any]
) -> dict[tuple[RolloutId, SearchPart, int | None, int | None], str]:
    """Their texts, by rollout, part, call and command."""
    places = sorted({(r.rollout_id, r.epoch, r.call) for r in shown if r.call is not None})
    whole = sorted({row.rollout_id for row in shown if row.call is None})
    return {each.key: each.text for each in await search_texts.at_places(connection, places, whole)}


def _hit(row: Any, wanted: Sequence[Words], texts: Any) -> SearchHit:
    told = texts.get((row.rollout_id, row.part, row.call, row.index), "")
    before, found, after = snippet(told, wanted)
    return SearchHit(
        rollout=row.rollout_id,
        campaign=row.campaign_id,
        task=row.task_id,
        part=row.part,
        call=row.call,
        returncode=row.returncode,
        verdict=row.verdict,
        stop_reason=row.stop_reason,
        policy_version=row.policy_version,
        step=row.step,
        finished_at=row.at,
        before=before,
        found=found,
        after=after,
    )


def _cursor(at: datetime, number: int) -> str:
    return f"{(at - _FIRST) // timedelta(microseconds=1)}-{number}"


def _read_cursor(after: str) -> tuple[datetime, int]:
    found = _CURSOR.fullmatch(after)
    if found is None:
        raise UsageError(
            f"after={after!r} is no place of a search", remedy="take the link of the page before"
        )
    return _FIRST + timedelta(microseconds=int(found[1])), int(found[2])
