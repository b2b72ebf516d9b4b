"""Base of every table: names of constraints, and column types by Python type."""

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, TIMESTAMP, Double, LargeBinary, MetaData, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

from infra.db.tables.columns import (
    Numbers,
    PackedFloats,
    PackedInts,
    ReplyParts,
    RequestBody,
    Spans,
)
from mainspring.programs.reply import Reply
from mainspring.programs.request import ModelRequest
from mainspring.trajectories.turns import VersionSpan


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy's own declaration)
        str: Text,
        bytes: LargeBinary,
        float: Double,
        datetime: TIMESTAMP(timezone=True),
        dict[str, Any]: JSONB,
        dict[str, float | None]: Numbers,
        list[str]: ARRAY(Text),
        tuple[int, ...]: PackedInts,
        tuple[float, ...]: PackedFloats,
        tuple[VersionSpan, ...]: Spans,
        Reply: ReplyParts,
        ModelRequest: RequestBody,
    }
