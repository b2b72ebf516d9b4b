"""Labels and notes that people give to rollouts, to choose them by.

Invariants: a label is about the epoch that was looked at, so that a retried rollout is
not chosen by one of before; giving a label twice is giving it once, and the first stands; the
newest note stands, and the event of each is the history. Scores and training read neither. Imported
by `reading`, reports, commands and the viewer.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Text, delete, func, literal, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.tables.event_writes import Event, write
from infra.db.tables.label_rows import LabelRow, NoteRow
from infra.db.tables.models import RolloutRow
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import EventKind

OF_ROLLOUT = (LabelRow.rollout_id == RolloutRow.id) & (LabelRow.epoch == RolloutRow.epoch)
"""A label that counts for the rollout as it is now."""
NAMES: ColumnElement[Any] = func.array(
    select(LabelRow.name)
    .where(OF_ROLLOUT)
    .order_by(LabelRow.name)
    .correlate(RolloutRow)
    .scalar_subquery(),
    type_=ARRAY(Text),
)
"""Names of a rollout's labels, where its row is read."""


@dataclass(frozen=True, slots=True)
class GivenLabel:
    name: str
    epoch: int
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    epoch: int
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Marks:
    """All labels of a rollout, also those of earlier epochs, and its note."""

    labels: tuple[GivenLabel, ...] = ()
    note: Note | None = None

    def names(self, epoch: int) -> list[str]:
        """Labels that count for this epoch."""
        return [label.name for label in self.labels if label.epoch == epoch]

    def as_dict(self) -> dict[str, Any]:
        return {
            "labels": [_document(label, name=label.name) for label in self.labels],
            "note": None if self.note is None else _document(self.note, text=self.note.text),
        }


@dataclass(frozen=True, slots=True)
class MarkChange:
    """Labels to give and to take, and the note."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    note: str | None = None
    """The new note; empty: none. None: it stays."""

    def told(self) -> str:
        """The change in words."""
        parts = [f"{name} added" for name in self.add]
        parts += [f"{name} removed" for name in self.remove]
        if self.note is not None:
            parts.append(f"note {self.note!r}" if self.note else "note removed")
        return ", ".join(parts)


def has_label(name: str) -> ColumnElement[bool]:
    """Whether a rollout's row has the label."""
    of_name = select(LabelRow.name).where(OF_ROLLOUT, LabelRow.name == name)
    return of_name.correlate(RolloutRow).exists()


async def of_rollout(connection: AsyncConnection, rollout: RolloutId) -> Marks:
    """Labels and the note of a rollout."""
    labels = await connection.execute(
        select(LabelRow.name, LabelRow.epoch, LabelRow.by, LabelRow.at)
        .where(LabelRow.rollout_id == rollout)
        .order_by(LabelRow.name)
    )
    note = await connection.execute(
        select(NoteRow.text, NoteRow.epoch, NoteRow.by, NoteRow.at).where(
            NoteRow.rollout_id == rollout
        )
    )
    row = note.one_or_none()
    return Marks(tuple(GivenLabel(*each) for each in labels), None if row is None else Note(*row))


async def names_in(db: Database, campaign: CampaignId) -> dict[str, int]:
    """Labels of the campaign's rollouts with their numbers, the most frequent first."""
    num = func.count()
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(LabelRow.name, num)
            .join(RolloutRow, OF_ROLLOUT)
            .where(RolloutRow.campaign_id == campaign)
            .group_by(LabelRow.name)
            .order_by(num.desc(), LabelRow.name)
        )
        return dict(rows.tuples().all())


async def having(db: Database, campaign: CampaignId, name: str) -> set[RolloutId]:
    """The campaign's rollouts that have the label."""
    async with db.transaction() as connection:
        ids = await connection.scalars(
            select(RolloutRow.id).where(RolloutRow.campaign_id == campaign, has_label(name))
        )
        return {RolloutId(id) for id in ids}


async def change(
    db: Database, ids: Sequence[RolloutId], asked: MarkChange, by: str
) -> list[RolloutId]:
    """Give and take labels, and write the note, of all these rollouts or of none; those of which
    something changed. An event for each campaign is told with it. Raises UnknownId."""
    async with db.transaction() as connection:
        epochs = await _held(connection, ids)
        changed = set()
        for name in asked.remove:
            changed |= await _take(connection, epochs, name)
        for name in asked.add:
            changed |= await _give(connection, epochs, name, by)
        if asked.note is not None:
            changed |= await _note(connection, epochs, asked.note, by)
        await _tell(connection, [id for id in ids if id in changed], asked, by)
    return [id for id in ids if id in changed]


async def _held(connection: AsyncConnection, ids: Sequence[RolloutId]) -> dict[RolloutId, int]:
    """Their epochs; none of them can be deleted before the transaction ends."""
    rows = await connection.execute(
        select(RolloutRow.id, RolloutRow.epoch)
        .where(_among(RolloutRow.id, ids))
        .order_by(RolloutRow.id)
        .with_for_update(read=True, key_share=True)
    )
    found = {RolloutId(id): epoch for id, epoch in rows}
    for id in ids:
        if id not in found:
            raise unknown("rollout", id)
    return found


def _among(column: Any, ids: Collection[str]) -> ColumnElement[bool]:
    """One parameter, however many there are."""
    return column == func.any(literal(list(ids), ARRAY(Text)))


async def _give(
    connection: AsyncConnection, epochs: Mapping[RolloutId, int], name: str, by: str
) -> set[RolloutId]:
    """One of an earlier epoch becomes one of this epoch."""
    given = insert(LabelRow).values(
        [
            {"rollout_id": id, "name": name, "epoch": epoch, "by": by}
            for id, epoch in sorted(epochs.items())
        ]
    )
    new = given.excluded
    written = await connection.scalars(
        given.on_conflict_do_update(
            index_elements=[LabelRow.rollout_id, LabelRow.name],
            set_={"epoch": new.epoch, "by": new.by, "at": func.now()},
            where=LabelRow.epoch != new.epoch,
        ).returning(LabelRow.rollout_id)
    )
    return {RolloutId(id) for id in written}


async def _take(
    connection: AsyncConnection, epochs: Mapping[RolloutId, int], name: str
) -> set[RolloutId]:
    taken = await connection.scalars(
        delete(LabelRow)
        .where(LabelRow.name == name, _among(LabelRow.rollout_id, epochs))
        .returning(LabelRow.rollout_id)
    )
    return {RolloutId(id) for id in taken}


async def _note(
    connection: AsyncConnection, epochs: Mapping[RolloutId, int], note: str, by: str
) -> set[RolloutId]:
    if not note:
        gone = await connection.scalars(
            delete(NoteRow).where(_among(NoteRow.rollout_id, epochs)).returning(NoteRow.rollout_id)
        )
        return {RolloutId(id) for id in gone}
    given = insert(NoteRow).values(
        [
            {"rollout_id": id, "epoch": epoch, "text": note, "by": by}
            for id, epoch in sorted(epochs.items())
        ]
    )
    new = given.excluded
    written = await connection.scalars(
        given.on_conflict_do_update(
            index_elements=[NoteRow.rollout_id],
            set_={"epoch": new.epoch, "text": new.text, "by": new.by, "at": func.now()},
            where=or_(NoteRow.epoch != new.epoch, NoteRow.text != new.text),
        ).returning(NoteRow.rollout_id)
    )
    return {RolloutId(id) for id in written}


async def _tell(
    connection: AsyncConnection, changed: Sequence[RolloutId], asked: MarkChange, by: str
) -> None:
    """One event for each campaign, whatever the number of its rollouts."""
    of: dict[str, list[RolloutId]] = {}
    for id in changed:
        of.setdefault(id.partition("/")[0], []).append(id)
    for campaign, theirs in of.items():
        which = theirs[0] if len(theirs) == 1 else f"{len(theirs)} rollouts"
        text = f"rollout label: {which}: {asked.told()}"
        await write(connection, Event(EventKind.COMMAND, which, text, campaign, by))


def _document(mark: GivenLabel | Note, **content: str) -> dict[str, Any]:
    at = mark.at.isoformat(timespec="seconds")
    return {**content, "epoch": mark.epoch, "by": mark.by, "at": at}
