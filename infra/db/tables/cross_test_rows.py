"""Table of cross tests: what a test that one rollout wrote did with the patch of another.

Held by the schema: one row for each test of a candidate's life, and one for each test without any
patch. Imported by `models`.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, func
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import PlainText


class CrossTestRow(Base):
    __tablename__ = "cross_tests"

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    """The candidate; without a patch, the first rollout that wrote the test."""
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    test: Mapped[str] = mapped_column(primary_key=True)
    """Digest of the test's files and command."""
    without_patch: Mapped[bool] = mapped_column(primary_key=True)
    exit_code: Mapped[int | None]
    """Null: it was not compared."""
    note: Mapped[str] = mapped_column(PlainText)
    """Why it was not compared, or why it failed when the test itself does not tell."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
