"""Tables of rollouts that a program plays: its lives, and what it asked of the policy.

Held by the schema: one row for each request of an epoch, one for each life. Imported by `models`.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, func, text
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import PlainText, word
from mainspring.programs.record import BranchKind, RequestState
from mainspring.programs.request import Dialect


class ProgramLifeRow(Base):
    """One start of a program, from the beginning, in a sandbox of its own."""

    __tablename__ = "program_lives"
    __table_args__ = (Index(None, "key_hash"),)

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    life: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key_hash: Mapped[str]
    """SHA-256 of the key that its requests come with."""
    bundle_sha256: Mapped[str | None]
    """Digest of the bundle that it ran from; null: of none, or of one that was gone by then."""
    returncode: Mapped[int | None]
    """Null: it runs, or its end was not seen."""
    output: Mapped[str | None] = mapped_column(PlainText)
    """The end of what it printed."""
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ended_at: Mapped[datetime | None]


class ModelRequestRow(Base):
    """A program's request; its reply is the call of the same number."""

    __tablename__ = "model_requests"
    __table_args__ = (UniqueConstraint("rollout_id", "epoch", "key", "occurrence"),)

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key: Mapped[str]
    """Digest of all that the model is shown."""
    occurrence: Mapped[int]
    """How often the same was asked, and answered whole, before."""
    life: Mapped[int]
    """The last life that asked it."""
    first_life: Mapped[int]
    dialect: Mapped[Dialect] = word("dialect", Dialect)
    body: Mapped[bytes]
    """The request as compressed JSON."""
    state: Mapped[RequestState] = word("state", RequestState)
    refusal: Mapped[dict[str, Any] | None]
    """Why it was refused, as the client is told."""
    kind: Mapped[BranchKind] = word("kind", BranchKind)
    setting: Mapped[str]
    """Digest of instructions and tools: a sub-agent has others than the agent."""
    history: Mapped[str | None]
    """Digest of the request and its reply: what a request that continues them begins with."""
    delivered_life: Mapped[int | None]
    """The last life that had the reply whole."""
    num_sent: Mapped[int] = mapped_column(server_default=text("0"))
    """How often an endpoint took it: more than once where a reply was lost under way."""
    asked_at: Mapped[datetime] = mapped_column(server_default=func.now())
    answered_at: Mapped[datetime | None]
