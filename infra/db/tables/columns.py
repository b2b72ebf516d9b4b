"""Column types: how the domain's values lie in Postgres.

Owns the packed layout of tokens and log-probs (little-endian, 4 bytes each, no header) and keeps
characters that Postgres cannot hold out of text. Imported by `models`, and by queries that count
packed values.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import isfinite
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    Double,
    Integer,
    LargeBinary,
    Text,
    cast,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import InstrumentedAttribute, MappedColumn, mapped_column
from sqlalchemy.types import TypeDecorator

from mainspring.programs.reply import Reply
from mainspring.programs.request import ModelRequest
from mainspring.trajectories.turns import VersionSpan

_VALUE_BYTES = 4


def _numpy() -> Any:
    """Imported where tokens are read: most commands read none, and it is a fifth of their start."""
    import numpy

    return numpy


def seconds(interval: ColumnElement[Any]) -> ColumnElement[float]:
    """A difference of two times, in seconds."""
    return cast(func.extract("epoch", interval), Double)


class PackedInts(TypeDecorator[tuple[int, ...]]):
    """Token ids as int32."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: tuple[int, ...] | None, dialect: Dialect) -> bytes | None:
        return None if value is None else _numpy().asarray(value, "<i4").tobytes()

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else tuple(_numpy().frombuffer(value, "<i4").tolist())


class PackedFloats(TypeDecorator[tuple[float, ...]]):
    """Log-probabilities as float32, the precision they are served in."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: tuple[float, ...] | None, dialect: Dialect) -> bytes | None:
        return None if value is None else _numpy().asarray(value, "<f4").tobytes()

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else tuple(_numpy().frombuffer(value, "<f4").tolist())


class IntArray(TypeDecorator[Any]):
    """A column of PackedInts read as an int32 array, a view of what Postgres sent: for what is read
    in bulk."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else _numpy().frombuffer(value, "<i4")


class FloatArray(TypeDecorator[Any]):
    """A column of PackedFloats read as a float32 array, likewise."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else _numpy().frombuffer(value, "<f4")


def num_packed(column: InstrumentedAttribute[Any]) -> ColumnElement[int]:
    """How many tokens or log-probs a row holds, without reading them.

    Whole division: the other one gives Decimals, which floats of a reward cannot be added to."""
    return func.octet_length(column, type_=Integer) // _VALUE_BYTES


class Spans(TypeDecorator[tuple[VersionSpan, ...]]):
    """Version spans as a JSON list of [version, start, end]."""

    impl = JSONB
    cache_ok = True

    def process_bind_param(self, value: tuple[VersionSpan, ...] | None, dialect: Dialect) -> Any:
        return None if value is None else [[s.version, s.start, s.end] for s in value]

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else tuple(VersionSpan(*span) for span in value)


def plain(text: str) -> str:
    """The text without what Postgres refuses: NUL and lone surrogates become U+FFFD."""
    return (
        text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


class PlainText(TypeDecorator[str]):
    """Text written by a model or a program, as `plain`: a strange reply is data and not a crash."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else plain(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return value


class ReplyParts(TypeDecorator[Reply]):
    """A reply as JSON in text: JSONB refuses NUL, which a model may write. Without defaults: a
    program of the version before does not know a new field."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Reply | None, dialect: Dialect) -> str | None:
        return None if value is None else value.model_dump_json(exclude_defaults=True)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Reply | None:
        return None if value is None else Reply.model_validate_json(value)


class RequestBody(TypeDecorator[ModelRequest]):
    """A request as JSON in text, as a reply."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: ModelRequest | None, dialect: Dialect) -> str | None:
        return None if value is None else value.model_dump_json(exclude_defaults=True)

    def process_result_value(self, value: str | None, dialect: Dialect) -> ModelRequest | None:
        return None if value is None else ModelRequest.model_validate_json(value)


class Numbers(TypeDecorator[dict[str, float | None]]):
    """Named numbers as JSON; NaN and infinities, which JSON lacks, become null."""

    impl = JSONB
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, float | None] | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        return {key: x if x is not None and isfinite(x) else None for key, x in value.items()}

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return value


class Word(TypeDecorator[StrEnum]):
    """A StrEnum member as its string."""

    impl = Text
    cache_ok = True

    def __init__(self, members: type[StrEnum]) -> None:
        super().__init__()
        self.members = members

    def process_bind_param(self, value: StrEnum | str | None, dialect: Dialect) -> str | None:
        return None if value is None else self.members(value).value

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else self.members(value)


def word(
    column: str,
    members: type[StrEnum],
    default: StrEnum | None = None,
    *,
    primary_key: bool = False,
) -> MappedColumn[Any]:
    """A column of one StrEnum's strings, with the CHECK constraint that enforces them."""
    listed = ", ".join(f"'{member}'" for member in members)
    check = CheckConstraint(f"{column} IN ({listed})", name=column)
    return mapped_column(
        column, Word(members), check, server_default=default, primary_key=primary_key
    )
