"""The seam between rollouts and whatever serves the policy.

- `Policy` gives the next reply of a rollout: in tokens (`token_policy`) or in text (`text_policy`).
- `Engines` are what a policy in tokens asks: servers that speak SGLang's native HTTP API.
- `Publisher` loads policy versions into engines. Each version has its identity: `weight_label`.

Imported by the activities of replies and publishing, and by the implementations beside it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infra.policy.weight_label import WeightLabel
from mainspring.agents.conversation import Conversation
from mainspring.errors import EngineError, EngineUnreachable
from mainspring.ids import RolloutId
from mainspring.status import FaultKind
from mainspring.trajectories.turns import Call, VersionSpan


class MalformedReply(EngineError):
    """An answer of another shape than the API has: cut on its way, or from something else."""

    fault = FaultKind.REPLY_MALFORMED


class TokenOutOfVocabulary(EngineError):
    """A request with an id that the model has no embedding for: on a GPU it kills the engine."""


class ClosesConnections(EngineError):
    """A request under which connection after connection closed: most likely it kills engines."""


class ContextFull(EngineError):
    """The conversation leaves no room for a reply."""


class NoEngineAnswered(EngineUnreachable):
    """Asking again later may help."""

    def __init__(self, message: str, num_closed: int) -> None:
        super().__init__(message)
        self.num_closed = num_closed
        """Connections that closed under this request so far: see ReplyRequest.num_closed."""


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


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """The next reply of one rollout."""

    number: int
    """Of the call that is asked for, among those of its epoch."""
    rollout: RolloutId
    """Requests of one rollout prefer the same engine, for its cache."""
    request_id: str
    """Of this attempt."""
    conversation: Conversation
    temperature: float
    min_version: int
    """Engines that serve an older policy version are brought up to date before they are asked."""
    num_closed: int = 0
    """What NoEngineAnswered told of an earlier attempt, so that a request that kills engines is not
    handed to all of them."""


class Policy(Protocol):
    """Gives a campaign's replies, in tokens or in text. One per process and campaign, safe for
    concurrent calls on one event loop."""

    async def complete(self, ask: ReplyRequest) -> Call:
        """The reply, not stored yet. Raises ContextFull; EngineError when the request is refused
        for good; EngineUnreachable, EngineBusy or EngineFailing when asking again may help."""
        ...

    async def aclose(self) -> None: ...


class Publisher(Protocol):
    """Loads policy versions into engines."""

    async def publish(self, engine: str, weights: Path, label: WeightLabel) -> None:
        """Load `weights` (a Hugging Face directory) into the engine at URL `engine` as `label`.
        Idempotent; in-flight requests continue under the new weights with recomputed KV. Raises
        EngineError or ConnectionError."""
        ...


class Engines(Publisher, Protocol):
    """Engines that sample tokens: what `TokenPolicy` asks."""

    async def generate(
        self,
        input_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        sticky: str,
        min_version: int | None = None,
        num_closed: int = 0,
    ) -> Completion:
        """Sample one completion; requests with the same `sticky` prefer the same engine. A request
        cut off by an abort continues from its partial tokens, so a completion may span versions.
        Raises EngineError when the request is refused for good, NoEngineAnswered when no engine can
        be reached, UnknownWeights when an engine serves no known version from `min_version` on."""
        ...

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        """Load the newest weights into an engine that serves others. False: it was done already."""
        ...

    async def aclose(self) -> None: ...


class ChatText(Protocol):
    """A chat template as token arithmetic: `infra.policy.tokenizer.ChatTokenizer`."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    def prompt_ids(self, system: str, user: str) -> list[int]: ...

    def next_prompt_ids(self, user_text: str, *, closed: bool) -> list[int]: ...

    def decode(self, ids: list[int] | tuple[int, ...]) -> str: ...
