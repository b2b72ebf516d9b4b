"""Tables of what a step did with each rollout of its batch, and of its worst tokens.

Held by the schema: a step has one row for each of its rollouts; both go with their step. Imported
by `models`. Rollouts have no foreign key: a campaign that trains another one's batches again has
rows about that one's rollouts, and both are deleted, archived and restored by themselves.
"""

from typing import Any

from sqlalchemy import ForeignKeyConstraint, Index, false
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import word
from mainspring.status import Untrained


class StepRolloutRow(Base):
    __tablename__ = "step_rollouts"
    __table_args__ = (
        ForeignKeyConstraint(
            ["campaign_id", "step"], ["steps.campaign_id", "steps.step"], ondelete="CASCADE"
        ),
        Index(None, "rollout_id"),
    )

    campaign_id: Mapped[str] = mapped_column(primary_key=True)
    """Whose step it is: the rollout's own campaign, or one that trains its batch again."""
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rollout_id: Mapped[str] = mapped_column(primary_key=True)
    advantage: Mapped[float | None]
    """The same for all its tokens, before any was masked. Null: it has none."""
    is_mean: Mapped[bool] = mapped_column(server_default=false())
    """Its tokens have different advantages, and `advantage` is their mean."""
    call_advantages: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """By the call's number, where the turns of a rollout have advantages of their own."""
    num_trained_tokens: Mapped[int]
    """Sampled tokens of it that the loss was taken over."""
    masked_why: Mapped[Untrained | None] = word("masked_why", Untrained)
    """Why there is no such token. Null: there are some."""


class StepGapRow(Base):
    __tablename__ = "step_gaps"
    __table_args__ = (
        ForeignKeyConstraint(
            ["campaign_id", "step"], ["steps.campaign_id", "steps.step"], ondelete="CASCADE"
        ),
        Index(None, "rollout_id"),
    )

    campaign_id: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rollout_id: Mapped[str] = mapped_column(primary_key=True)
    call: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    offset: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Place of the token in the call's reply, from 0."""
    served: Mapped[float | None]
    """Log-prob as the engine served it. Null: not a finite number."""
    recomputed: Mapped[float | None]
    """Log-prob that the trainer computed under the same weights. Null: not a finite number."""


class StepTokenRow(Base):
    """Numbers of all tokens of a call, where the campaign has `trainer.keep_recomputed`."""

    __tablename__ = "step_tokens"
    __table_args__ = (
        ForeignKeyConstraint(
            ["campaign_id", "step"], ["steps.campaign_id", "steps.step"], ondelete="CASCADE"
        ),
        Index(None, "rollout_id"),
    )

    campaign_id: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rollout_id: Mapped[str] = mapped_column(primary_key=True)
    call: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    logprobs: Mapped[tuple[float, ...]]
    """As the trainer computed them, of each token of the reply; NaN where it was masked."""
    entropies: Mapped[tuple[float, ...] | None]
    """The same of entropies. Null: the call was only compared, not trained on."""
