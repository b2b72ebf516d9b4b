"""Tables of judgements: each question to a judge about a rollout, and its votes.

Held by the schema: one row for each question of an epoch, one for each of its votes. Imported by
`models`.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import PlainText, word
from mainspring.config.agents.judges import QuestionScope


class JudgeVoteRow(Base):
    """One vote, stored as soon as it was given: it was paid for."""

    __tablename__ = "judge_votes"

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    judge: Mapped[str] = mapped_column(primary_key=True)
    of: Mapped[QuestionScope] = word("of", QuestionScope, primary_key=True)
    call: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Its place among the votes of its judgement."""
    text: Mapped[str] = mapped_column(PlainText)
    """The judge's reply."""
    value: Mapped[float | None]
    """Null: it could not be read as a vote."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class JudgementRow(Base):
    """The result of one question, once it is settled."""

    __tablename__ = "judgements"
    # Of the newest ones the screens tell whether votes can be read.
    __table_args__ = (Index(None, "judge", "created_at"),)

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    judge: Mapped[str] = mapped_column(primary_key=True)
    """Name of the judge in the campaign's configuration."""
    of: Mapped[QuestionScope] = word("of", QuestionScope, primary_key=True)
    call: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Number of the call that is judged; 0 of a whole rollout."""
    prompt_sha256: Mapped[str]
    """Digest of the prompt; empty where it could not be made."""
    score: Mapped[float | None]
    """Mean of the valid votes, 0 when none of all votes is valid; null: missing."""
    num_votes: Mapped[int]
    num_valid: Mapped[int]
    missing: Mapped[str | None] = mapped_column(PlainText)
    """Why votes are missing."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
