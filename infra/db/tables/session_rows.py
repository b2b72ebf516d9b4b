"""Tables of rollouts that agents outside play: their sessions, and the keys that take them.

Held by the schema: one session for each life of a rollout; one claim takes one session. Imported by
`models`.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint, func, text
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import PlainText, word
from mainspring.programs.session import SessionEnd


class CampaignKeyRow(Base):
    """Key that an agent outside shows to take sessions of a run."""

    __tablename__ = "campaign_keys"
    __table_args__ = (Index(None, "key_hash"),)

    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"), primary_key=True)
    key_hash: Mapped[str]
    """SHA-256 of the key."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class OfferedSessionRow(Base):
    """One life of a rollout, offered to agents outside; its key is that of the program's life."""

    __tablename__ = "offered_sessions"
    __table_args__ = (
        UniqueConstraint("rollout_id", "epoch", "life"),
        UniqueConstraint("campaign_id", "claim"),
        Index(
            "ix_offered_sessions_waiting",
            "campaign_id",
            "offered_at",
            postgresql_where=text("taken_at IS NULL AND ended_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"))
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"))
    epoch: Mapped[int]
    life: Mapped[int]
    offered_at: Mapped[datetime] = mapped_column(server_default=func.now())
    claim: Mapped[str | None] = mapped_column(PlainText)
    """Identity of the claim that took it, the same when the claim is sent again."""
    taken_by: Mapped[str | None] = mapped_column(PlainText)
    """The name that the agent gave."""
    taken_at: Mapped[datetime | None]
    deadline: Mapped[datetime | None]
    seen_at: Mapped[datetime | None]
    """Time of the agent's newest request or heartbeat."""
    ending: Mapped[SessionEnd | None] = word("ending", SessionEnd)
    result_hash: Mapped[str | None]
    """SHA-256 of what was handed in."""
    note: Mapped[str | None] = mapped_column(PlainText)
    """The agent's words on its error, or why it was ended."""
    ended_at: Mapped[datetime | None]
