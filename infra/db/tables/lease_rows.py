"""Tables of leases: who trains a campaign, and who does other work that one process at a time does.

Held by the schema: one holder of a lease. Imported by `models`.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, func, text
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base


class TrainerLeaseRow(Base):
    """Which trainer process works for a campaign; `epoch` counts them and fences their writes."""

    __tablename__ = "trainer_leases"

    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"), primary_key=True)
    epoch: Mapped[int]
    owner: Mapped[str]
    """Host and process id, for people."""
    process: Mapped[str]
    """The process beyond doubt: the kernel's boot, its pid namespace, pid and start."""
    released: Mapped[bool] = mapped_column(server_default=text("false"))
    """The owner ended in order: the next one need not wait."""
    since: Mapped[datetime] = mapped_column(server_default=func.now())
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LeaseRow(Base):
    """Work that one process at a time does; see `infra.db.leases`."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str]
    """Made for this holder: who takes the lease over writes its own."""
    owner: Mapped[str]
    """Host and process id, for people."""
    process: Mapped[str]
    """The process beyond doubt, as in `trainer_leases`."""
    since: Mapped[datetime] = mapped_column(server_default=func.now())
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
