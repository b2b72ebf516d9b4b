"""An action: where it is offered, what it would do, and doing it.

Implemented by the command line, with the functions that its commands call. Imported by that, and by
the modules beside this file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Say = Callable[[str], None]
"""Told what an action waits for."""


@dataclass(frozen=True, slots=True)
class ActRequest:
    """A request for an action: to what, and with which values."""

    of: str
    """Id of the campaign, the rollout or the node."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The other values of the address, or of the form."""


@dataclass(frozen=True, slots=True)
class Input:
    """A field of the form."""

    name: str
    words: str
    value: str = ""
    num_lines: int = 1


@dataclass(frozen=True, slots=True)
class Preview:
    """An action as it would be done now."""

    what: Sequence[str]
    """Sentences with numbers."""
    command: str
    """The command that does the same."""
    back: str
    """Address of the page that it was offered on."""
    seen: str = ""
    """Facts that the decision rests on: where they have changed, the preview is shown again."""
    verb: str = ""
    """Word on the button that does it; empty: the action's title."""
    confirm: str = ""
    """Text that a person must type; empty: none."""
    inputs: Sequence[Input] = ()
    is_asking: bool = False
    """Values of the inputs are missing: nothing can be done yet."""


class Action(Protocol):
    name: str
    """Word of its address."""
    title: str
    """Word on its button."""

    def offer(self, shown: Any) -> Mapping[str, str] | None:
        """Query of its address from what a page shows: one of the dataclasses of `view.pages`, or a
        record on one; None: it is not offered there."""
        ...

    async def preview(self, asked: ActRequest) -> Preview:
        """Changes nothing. Raises UsageError where the action would be refused, DatabaseError."""
        ...

    async def do(self, asked: ActRequest, shown: Preview, by: str, say: Say) -> str:
        """Tells what was done, in a sentence. `shown`: the preview that was agreed to. `by`: who
        asks, for the event. Raises MainspringError."""
        ...
