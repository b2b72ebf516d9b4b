"""Table of the engines of campaigns: the members of each fleet, with what was last seen of them.

Held by the schema: in a campaign a name has one row, and an address has one. Imported by `models`,
and by what reads and changes a fleet.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, UniqueConstraint, false, func
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import PlainText, word
from mainspring.status import EngineOrigin


class EngineRow(Base):
    __tablename__ = "engines"
    __table_args__ = (UniqueConstraint("campaign_id", "url"),)

    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"), primary_key=True)
    name: Mapped[str] = mapped_column(PlainText, primary_key=True)
    """Who it is, wherever it answers: an engine that comes back under another address keeps it."""
    url: Mapped[str] = mapped_column(PlainText)
    origin: Mapped[EngineOrigin] = word("origin", EngineOrigin)
    life: Mapped[str] = mapped_column(PlainText)
    """The process that registered it, and that a later one of the same name takes it from; empty:
    none did."""
    draining: Mapped[bool] = mapped_column(server_default=false())
    added_by: Mapped[str] = mapped_column(PlainText)
    """User and host, for people."""
    joined_at: Mapped[datetime] = mapped_column(server_default=func.now())
    looked_at: Mapped[datetime | None]
    """When a process last began to ask it, or it reported itself."""
    seen_at: Mapped[datetime | None]
    """When it last answered."""
    fault: Mapped[str] = mapped_column(PlainText, server_default="")
    """Why it did not answer the last time; empty: it did."""
    version: Mapped[str] = mapped_column(PlainText, server_default="")
    """Label of the weights that it served."""
    model: Mapped[str] = mapped_column(PlainText, server_default="")
    """Folder of the model that it was started with."""
    vocab_size: Mapped[int | None]
    num_running: Mapped[int] = mapped_column(server_default="0")
    num_waiting: Mapped[int] = mapped_column(server_default="0")
    kv_used: Mapped[float | None]
    """Share of its KV cache that requests hold, 0 to 1; null: it does not tell."""
