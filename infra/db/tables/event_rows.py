"""Table of events: what happened to processes and was done by people.

Held by the schema: an id is one event, however often it is written. Imported by `models`, and by
what writes and reads events. The kind has no CHECK constraint: programs of two versions work on one
store, and the older one must be able to show a kind of the newer.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, func, literal_column
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import PlainText


class EventRow(Base):
    __tablename__ = "events"
    __table_args__ = (Index(None, "campaign_id", "last_at"),)

    id: Mapped[str] = mapped_column(PlainText, primary_key=True)
    """Named by what happened where that has a name, else random: a second writing is none."""
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_at: Mapped[datetime] = mapped_column(server_default=func.now())
    """When it happened the last time, of `count`."""
    count: Mapped[int] = mapped_column(server_default=literal_column("1"))
    campaign_id: Mapped[str | None]
    """Null: of a machine or of the store, or about a campaign that may be gone by now. No foreign
    key: its check would wait for who holds the campaign's row, and hold it for who waits."""
    kind: Mapped[str]
    """See `mainspring.status.event`."""
    subject: Mapped[str] = mapped_column(PlainText)
    """Whom it happened to: an engine, a node, a rollout, a step."""
    text: Mapped[str] = mapped_column(PlainText)
    """One sentence for people; of the last time where there were several."""
    by: Mapped[str] = mapped_column(PlainText)
    """Who noticed it, or gave the command: user@host of a person, host and pid of a process."""
    data: Mapped[dict[str, Any]] = mapped_column(server_default=literal_column("'{}'"))
    """A few numbers and words, for programs."""
