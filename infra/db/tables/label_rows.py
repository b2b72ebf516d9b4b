"""Tables of labels and notes that people give to rollouts.

Held by the schema: a rollout has a label once, and one note. Imported by `models`, and by queries
that choose rollouts by label. Neither is read by anything that scores or trains.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import PlainText


class LabelRow(Base):
    __tablename__ = "rollout_labels"
    __table_args__ = (Index(None, "name"),)

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int]
    """The epoch that was looked at: a retried rollout has other turns."""
    by: Mapped[str] = mapped_column(PlainText)
    """User and host of who gave it."""
    at: Mapped[datetime] = mapped_column(server_default=func.now())


class NoteRow(Base):
    __tablename__ = "rollout_notes"

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    epoch: Mapped[int]
    """The epoch that was looked at."""
    text: Mapped[str] = mapped_column(PlainText)
    by: Mapped[str] = mapped_column(PlainText)
    at: Mapped[datetime] = mapped_column(server_default=func.now())
