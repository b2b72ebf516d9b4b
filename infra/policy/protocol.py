"""The seam between rollouts and whatever serves the policy: SGLang's native HTTP API.

A policy engine is any server that speaks it (SGLang, or `mainspring serve` on CPU). Activities use
`PolicyClient`; the trainer publishes weights through `PolicyControl`. Weight versions are the
campaign's policy versions, each with its identity: see infra.policy.weight_label.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError, EngineUnreachable
from mainspring.status import FaultKind
from mainspring.turns import VersionSpan


class MalformedReply(EngineError):
    """An answer of another shape than the API has: cut on its way, or from something else."""

    fault = FaultKind.REPLY_MALFORMED


class TokenOutOfVocabulary(EngineError):
    """A request with an id that the model has no embedding for: on a GPU it kills the engine."""


class ClosesConnections(EngineError):
    """A request under which connection after connection closed: most likely it kills engines."""


class NoEngineAnswered(EngineUnreachable):
    """Asking again later may help."""

    def __init__(self, message: str, num_closed: int) -> None:
        super().__init__(message)
        self.num_closed = num_closed
        """Connections that closed under this request so far: see PolicyClient.generate."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    output_ids: tuple[int, ...]
    """[T_out], the stop token included."""
    logprobs: tuple[float, ...]
    """[T_out] as served."""
    spans: tuple[VersionSpan, ...]
    finish_reason: str
    """"stop" or "length"; aborted requests are resumed inside the client, never returned."""
    latency_s: float


class PolicyClient(Protocol):
    async def generate(
        self,
        input_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        sticky: str,
        num_closed: int = 0,
    ) -> Completion:
        """Sample one completion; requests with the same `sticky` prefer the same engine (its KV
        cache). A request cut off by an abort goes on from its partial tokens, so a completion may
        span versions. `num_closed`: what NoEngineAnswered said of an earlier attempt, so that a
        request that kills engines is not handed to all of them. Raises EngineError when the request
        is refused for good, NoEngineAnswered when no engine can be reached (retry later)."""
        ...


class PolicyControl(Protocol):
    async def publish(self, engine: str, weights: Path, label: WeightLabel) -> None:
        """Load `weights` (a Hugging Face directory) into the engine at URL `engine` as `label`.
        Idempotent; in-flight requests go on under the new weights with recomputed KV. Raises
        EngineError or ConnectionError."""
        ...

    async def served_version(self, engine: str) -> int | None:
        """The version the engine serves, None when its weights are not a campaign's."""
        ...
