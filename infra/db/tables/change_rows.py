"""Table of the changes of campaigns: which field runs with another value, and from which step on.

Held by the schema: one row for each number of a campaign. Imported by `models`, and by what reads
and adds changes; the rules are those of `mainspring.config.files.changes`.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import PlainText


class ChangeRow(Base):
    """One field of a campaign that was changed after the campaign was stored."""

    __tablename__ = "campaign_changes"
    __table_args__ = (
        CheckConstraint("number > 0", name="number"),
        CheckConstraint("from_step >= 0", name="from_step"),
    )

    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Counts from 1, in the order in which they were made."""
    field: Mapped[str]
    before: Mapped[Any] = mapped_column(JSONB)
    after: Mapped[Any] = mapped_column(JSONB)
    from_step: Mapped[int]
    """First step that it counts for; 0: it counts at once."""
    changed_by: Mapped[str] = mapped_column(PlainText)
    """User and host, for people."""
    changed_at: Mapped[datetime] = mapped_column(server_default=func.now())
