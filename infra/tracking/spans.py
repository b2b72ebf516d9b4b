"""Spans of what this process does, for OpenTelemetry; those of workflows are in `run_traces`.

Invariants: where no collector is named, a span is one call that makes nothing and imports nothing;
elsewhere it is put into a queue and waits for nothing (`telemetry`). A span has names and numbers,
never the text of a prompt, a reply or a command. Imported by activities and by what they call.
"""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeAlias

from mainspring.trajectories.spans import Value, attribute_name

_tracer: Any = None


def use(tracer: Any) -> None:
    """Make spans by this tracer of OpenTelemetry from now on; None: make none."""
    global _tracer
    _tracer = tracer


class NoSpan:
    __slots__ = ()

    def __enter__(self) -> "NoSpan":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def tell(self, **attributes: Value | None) -> None:
        """Takes what a span would."""


class RecordedSpan:
    """Ends with its block; one that ends by an exception has it as its status."""

    __slots__ = ("_attributes", "_block", "_span")

    def __init__(self, name: str, attributes: dict[str, Value | None]) -> None:
        self._block: AbstractContextManager[Any] = _tracer.start_as_current_span(
            name, record_exception=False
        )
        self._attributes = attributes

    def __enter__(self) -> "RecordedSpan":
        self._span = self._block.__enter__()
        self.tell(**self._attributes)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, error, traceback)

    def tell(self, **attributes: Value | None) -> None:
        """Add facts that are known by now. None: it was not measured."""
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(attribute_name(name), value)


AnySpan: TypeAlias = NoSpan | RecordedSpan
_NONE = NoSpan()


def span(name: str, **attributes: Value | None) -> AnySpan:
    """A block of this process, within the span that is open there. Attributes are named
    `mainspring.NAME`, or as OpenTelemetry names them."""
    return _NONE if _tracer is None else RecordedSpan(name, attributes)
