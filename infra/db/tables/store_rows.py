"""Table of the store's identity: what tells this database from every other one.

Held by the schema: one row, made by the migration. Imported by `models`.
"""

from datetime import datetime

from sqlalchemy import CheckConstraint, func, text
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base


class StoreRow(Base):
    __tablename__ = "store"
    __table_args__ = (CheckConstraint("single", name="single"),)

    single: Mapped[bool] = mapped_column(primary_key=True, server_default=text("true"))
    id: Mapped[str]
    """32 random hexadecimal digits."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    swept_at: Mapped[datetime | None]
    namespace: Mapped[str | None]
    """Temporal's, that the work is in; null until a process has connected to one."""
    oldest_accepted: Mapped[str | None]
    """Newest migration of the oldest program that works on this schema, written by each upgrade."""
