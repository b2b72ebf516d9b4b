"""How one kind of engine is spoken to: the seam between its routes and what all have in common.

Invariant: beyond a dialect there is one language, that of SGLang's native API. Requests are written
in it; answers, events of a stream and facts about an engine are read in it. A dialect translates,
and sends what its kind of engine takes; retries, streams, partial replies and the order of a load
are written once, beside this room. Imported by the dialects, and by `wire`, `loading`, `paused` and
the client.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

import httpx

from infra.policy.weight_label import WeightLabel

Json = dict[str, Any]


class Streaming(Enum):
    NONE = auto()
    """Replies come whole."""
    CUMULATIVE = auto()
    """Each event repeats the reply so far."""
    INCREMENTAL = auto()
    """Each event holds what is new."""


class Calls(Protocol):
    """HTTP to engines: `infra.policy.engines.wire.Wire`."""

    async def call(
        self, engine: str, method: str, path: str, body: Json | None = None
    ) -> dict[str, Any]:
        """Raises EngineError, EngineUnreachable, EngineFailing."""
        ...

    async def post(self, engine: str, path: str, body: Json) -> dict[str, Any]: ...

    async def fact(self, engine: str, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """A fact about the process at `engine`: asked once, and again after it did not answer, as
        another process may be there."""
        ...


async def always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request for tokens, as an engine takes it."""

    path: str
    body: Json
    streaming: Streaming = Streaming.NONE
    read: Callable[[Json], Json] = lambda answer: answer
    """Translates an answer, or an event of its stream. Raises ValueError, KeyError, TypeError for
    what has another shape; EngineError for what must not be taken."""
    stands: Callable[[], Awaitable[bool]] = always
    """Whether all tokens that came so far have the version that their events tell; False is for
    the rest of the stream."""
    tells_versions: bool = True
    """Whether each event of a stream is told its version by the engine. Else tokens count as
    received only where `stands` has confirmed them."""


@dataclass(frozen=True, slots=True)
class PausedEngine:
    url: str
    paused_s: float | None
    """For so long; None where the engine does not tell (SGLang, vLLM)."""
    num_waiting: int | None
    """Requests that wait in it; None where it does not tell."""
    resume_path: str

    @property
    def remedy(self) -> str:
        return f"if no weights are being loaded: curl -X POST {self.url}{self.resume_path}"


@dataclass(frozen=True, slots=True)
class LendingRoutes:
    """How an engine gives its memory away and takes it again: `lent_memory` asks."""

    end: tuple[str, Json]
    """Path and body by which requests in flight end with what they have, and later ones wait."""
    give: tuple[str, Json]
    take: tuple[str, Json]
    is_lent: Callable[[Calls, str], Awaitable[bool | None]]
    """Whether an engine is without its memory; None where it does not tell. Raises UnfitEngine for
    one that was started so that it cannot give it."""


class EngineDialect(Protocol):
    hold: tuple[str, Json]
    """Path and body by which requests in flight are taken back, and later ones wait."""
    resume: tuple[str, Json]
    """Path and body after which it generates again; nothing happens where it is not held."""

    @property
    def memory(self) -> LendingRoutes:
        """How it gives its memory away and takes it again."""
        ...

    async def info(self, calls: Calls, engine: str) -> Json:
        """Facts about what the engine serves now, at least `weight_version`."""
        ...

    async def ask(self, calls: Calls, engine: str, body: Json, *, streams: bool) -> EngineRequest:
        """The request `body`, whose reply is wanted in pieces if it `streams`. Raises UnfitEngine,
        UnknownWeights, EngineUnreachable."""
        ...

    async def load(self, calls: Calls, engine: str, model: Path, label: WeightLabel) -> None:
        """Load the directory `model` into an engine that is held. From then on, whatever happens,
        its label is the old one with the old weights, `label` with the new ones, or none of a
        version. Raises EngineError."""
        ...

    async def paused(self, http: httpx.AsyncClient, url: str) -> PausedEngine | None:
        """None where it is not. Raises httpx.HTTPError, ValueError."""
        ...
