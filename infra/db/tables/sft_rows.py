"""Tables of supervised runs: the data of a run, fixed before its first step.

Held by the schema: one row for each position. Imported by `models`, and by what reads and writes
samples.
"""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, func
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import PlainText


class SftDataRow(Base):
    """Data that a supervised run is trained on, fixed before its first step."""

    __tablename__ = "sft_data"

    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"), primary_key=True)
    digest: Mapped[str]
    """SHA-256 of all samples in their order."""
    num_samples: Mapped[int]
    num_tokens: Mapped[int] = mapped_column(BigInteger)
    num_trained_tokens: Mapped[int] = mapped_column(BigInteger)
    num_skipped: Mapped[int]
    """Samples that were too long."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SftSampleRow(Base):
    __tablename__ = "sft_samples"

    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    origin: Mapped[str] = mapped_column(PlainText)
    """Rollout, or file and line."""
    branch: Mapped[int]
    token_ids: Mapped[bytes]
    """int32, little-endian."""
    action_mask: Mapped[bytes]
    """A bit for each token, the first in the highest bit of the first byte."""
