"""Table of the words of ended rollouts, by which they are searched.

Held by the schema: a piece belongs to one epoch of a rollout. All of it can be made again from the
rollouts, so archives leave it out. Imported by `models`.
"""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Identity, Index
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from infra.db.tables.base import Base
from infra.db.tables.columns import word
from mainspring.trajectories.search_query import SearchPart


class SearchPieceRow(Base):
    """One text of a rollout: a reply, a command, an output, its patch or its tests."""

    __tablename__ = "search_pieces"
    __table_args__ = (
        Index(None, "rollout_id"),
        Index(None, "at", "id"),
        Index(None, "campaign_id", "at", "id"),
        # Without a list of pending words: a search would read all of it.
        Index(None, "words", postgresql_using="gin", postgresql_with={"fastupdate": "off"}),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"))
    epoch: Mapped[int]
    campaign_id: Mapped[str]
    part: Mapped[SearchPart] = word("part", SearchPart)
    call: Mapped[int | None]
    """Number of its call; null: it belongs to the rollout as a whole."""
    index: Mapped[int | None]
    """Which command of the call; null: none."""
    returncode: Mapped[int | None]
    """Exit code of the command; null: of none, or of one without an end."""
    at: Mapped[datetime]
    """When the rollout ended."""
    words: Mapped[str] = mapped_column(TSVECTOR)
    """Its words; and its part and exit code, as `part:output` and `exit:1`."""
