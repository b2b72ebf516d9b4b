"""The record of a run: its row, with the changes that were made since it was stored.

Invariants: `config` is the configuration for the next step; the digest is that of what was stored,
whatever was changed since. Imported by `campaigns`, which reads and writes the rows.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.change_rows import ChangeRow
from infra.db.tables.models import CampaignRow, PolicyVersionRow
from mainspring.algorithms.schedule import Batches
from mainspring.config.any_run import AnyRun, training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import ALWAYS, FieldChange, at_step, batches_of
from mainspring.config.files.stored import RESUMED_ON, lacks_device, read_row
from mainspring.ids import ROLLOUT_QUEUE, CampaignId, trainer_queue
from mainspring.status import CampaignKind, CampaignStatus, Incomplete

_FIELDS = (
    ChangeRow.number,
    ChangeRow.field,
    ChangeRow.before,
    ChangeRow.after,
    ChangeRow.from_step,
    ChangeRow.changed_by,
    ChangeRow.changed_at,
)
_CHANGES = (
    select(
        func.jsonb_agg(func.jsonb_build_object(*chain.from_iterable((c.key, c) for c in _FIELDS)))
    )
    .where(ChangeRow.campaign_id == CampaignRow.id)
    .correlate(CampaignRow)
    .scalar_subquery()
)
_NEWEST = (
    select(func.max(PolicyVersionRow.version))
    .where(PolicyVersionRow.campaign_id == CampaignRow.id)
    .correlate(CampaignRow)
    .scalar_subquery()
)
COLUMNS = (
    CampaignRow.id,
    CampaignRow.kind,
    CampaignRow.config,
    CampaignRow.status,
    CampaignRow.error,
    CampaignRow.created_at,
    CampaignRow.finished_at,
    CampaignRow.uid,
    CampaignRow.incomplete,
    CampaignRow.parent,
    _CHANGES.label("changes"),
    _NEWEST.label("newest"),
)


@dataclass(frozen=True, slots=True)
class Parent:
    """The beginning of a fork, or of a campaign that trains another one's batches again."""

    campaign: CampaignId
    version: int
    """Policy version of that campaign which is the fork's own version of that number."""
    first_index: int
    """Index of its first training group: the parent's own have those before."""
    order: tuple[int, ...] | None = None
    """Steps of that campaign whose batches are trained again, in this order; None: a fork."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Values by field that such a campaign was given of its own."""

    def __post_init__(self) -> None:
        if self.order is not None:  # JSON has lists
            object.__setattr__(self, "order", tuple(self.order))


@dataclass(frozen=True, slots=True)
class CampaignRecord:
    id: CampaignId
    config: AnyRun
    """As it is for the next step."""
    status: CampaignStatus
    error: str | None
    created_at: datetime
    finished_at: datetime | None
    uid: str
    """Tells it from another campaign of this name, in another store or another time."""
    config_digest: str
    """Digest of what shapes its weights, as it was stored, whatever version reads it."""
    lacks_device: bool = False
    """A version without `trainer.device` stored it: it resumes on the device that is given."""
    incomplete: Incomplete | None = None
    """Why its rows are not all there; None: they are."""
    stored: AnyRun | None = field(default=None, repr=False)
    """As it was stored; None: there was no change."""
    changes: tuple[FieldChange, ...] = ()
    """Changes since then, in the order in which they were made."""
    parent: Parent | None = None
    """None: it is no fork, and trains no other one's batches."""
    version: int | None = None
    """Its newest policy version; None: it has none yet."""

    @property
    def kind(self) -> CampaignKind:
        return self.config.kind

    @property
    def first_index(self) -> int:
        """Index of its first training group."""
        return 0 if self.parent is None else self.parent.first_index

    @property
    def first_version(self) -> int:
        """Policy version that it begins with."""
        return 0 if self.parent is None else self.parent.version

    @property
    def num_steps_done(self) -> int:
        """Its newest step that is done; of a fork the parent's steps count, as in `num_steps`."""
        return self.version or 0

    @property
    def is_retrained(self) -> bool:
        """Whether it trains the batches of its parent again, and plays no rollouts."""
        return self.parent is not None and self.parent.order is not None

    @property
    def retrained_from(self) -> CampaignId | None:
        """The campaign whose batches it trains again."""
        return self.parent.campaign if self.is_retrained and self.parent is not None else None

    @property
    def rescores(self) -> bool:
        """Whether it has another reward than the campaign whose batches it trains again."""
        given = self.parent.given if self.is_retrained and self.parent is not None else ()
        return any(f"{field}.".startswith("reward.") for field in given)

    @property
    def num_steps(self) -> int:
        """Steps of the whole campaign. Raises UsageError for a run that is none."""
        if self.parent is not None and self.parent.order is not None:
            return self.parent.version + len(self.parent.order)
        return training(self.config).trainer.num_steps

    @property
    def workflow_queue(self) -> str:
        """Queue of the workers that run its workflow: the trainer alone where nothing is played."""
        return trainer_queue(self.id) if self.is_retrained else ROLLOUT_QUEUE

    @property
    def as_stored(self) -> AnyRun:
        return self.stored or self.config

    def at(self, step: int) -> AnyRun:
        """Its configuration for a step, and for the rollouts of the version before that."""
        if self.stored is None or not isinstance(self.stored, CampaignConfig):
            return self.config
        return at_step(self.stored, self.changes, step)

    @property
    def latest(self) -> AnyRun:
        """Its configuration when all changes count."""
        return self.at(max((change.from_step for change in self.changes), default=ALWAYS))

    @property
    def batches(self) -> Batches | None:
        """Batches of a reproducible campaign, as it is now. Raises UsageError for another kind of
        run."""
        return batches_of(training(self.config), training(self.as_stored), self.changes)


def record_of(row: Row[Any]) -> CampaignRecord:
    """The record of a row of COLUMNS. Raises ConfigError or DatabaseError for one of another
    version."""
    config: AnyRun = read_row(row.id, row.kind, row.config)
    stored, changes = None, _changes(row.changes or ())
    if changes and isinstance(config, CampaignConfig):
        stored, config = config, at_step(config, changes, (row.newest or 0) + 1)
    return CampaignRecord(
        row.id,
        config,
        row.status,
        row.error,
        row.created_at,
        row.finished_at,
        uid=row.uid,
        config_digest=digest_of(row.config),
        lacks_device=lacks_device(row.kind, row.config),
        incomplete=row.incomplete,
        stored=stored,
        changes=changes,
        parent=None if row.parent is None else Parent(**row.parent),
        version=row.newest,
    )


async def read(connection: AsyncConnection, campaign: CampaignId) -> CampaignRecord | None:
    """The campaign's record; None when it is not stored."""
    statement = select(*COLUMNS).where(CampaignRow.id == campaign)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else record_of(row)


def digest_of(config: Mapping[str, Any]) -> str:
    """Digest of a stored configuration, without what shapes no weights: what is measured, and who
    is told of it."""
    shaping = {
        name: section
        for name, section in config.items()
        if name not in ("evaluation", "tracking", RESUMED_ON)
    }
    raw = json.dumps(shaping, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(raw.encode()).hexdigest()


def _changes(rows: Sequence[dict[str, Any]]) -> tuple[FieldChange, ...]:
    made: list[FieldChange] = []
    for row in rows:
        fields: dict[str, Any] = {**row, "changed_at": datetime.fromisoformat(row["changed_at"])}
        made.append(FieldChange(**fields))
    return tuple(sorted(made, key=lambda change: change.number))
