"""The seam between what is asked of the policy and whatever serves it.

- `Policy` replies to a request, of an agent or of a program: in tokens (`token_policy`) or in text
  (`text_policy`). A reply and what it continues follow from the request and the stored calls
  alone, so that each attempt asks for the same.
- `Engines` are what a policy in tokens asks: servers of SGLang, vLLM, or `mainspring serve`.
- `Publisher` loads policy versions into engines. Each version has its identity: `weight_label`.

Imported by the activities of replies and publishing, by the gateway, and by the implementations
beside it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from infra.policy.weight_label import WeightLabel
from mainspring.config.sampling import SamplingConfig
from mainspring.errors import EngineError, EngineUnreachable
from mainspring.ids import RolloutId
from mainspring.programs.matching import StoredCall, continued
from mainspring.programs.reply import Reply
from mainspring.programs.request import ChatMessage, ModelRequest, ToolSpec
from mainspring.status import FaultKind
from mainspring.trajectories.turns import Call, PartialCall, ReplyPart, VersionSpan

MIN_REPLY_TOKENS = 8
"""Less room than this for a reply is none: no command fits."""


class MalformedReply(EngineError):
    """An answer of another shape than the API has: cut on its way, or from something else."""

    fault = FaultKind.REPLY_MALFORMED


class TokenOutOfVocabulary(EngineError):
    """A request with an id that the model has no embedding for: on a GPU it kills the engine."""


class ClosesConnections(EngineError):
    """A request under which connection after connection closed: most likely it kills engines."""


class NotReproducible(EngineError):
    """An engine of a reproducible campaign whose replies depend on which requests run together, or
    whose bits are not those of the campaign's other engines."""

    fault = FaultKind.CONFIG_UNUSABLE


class UnfitEngine(EngineError):
    """An engine of a kind, or started in a way, by which training would go wrong."""

    fault = FaultKind.CONFIG_UNUSABLE


class WeightsDiffer(EngineError):
    """An engine holds other weights than the files of the version that was loaded into it."""


class ContextFull(EngineError):
    """The conversation leaves no room for a reply."""


class PromptTooLong(ContextFull):
    """The same, of a prompt whose tokens were counted here."""

    def __init__(self, num_tokens: int, max_tokens: int) -> None:
        left = max(0, max_tokens - num_tokens)
        super().__init__(f"{left} of {max_tokens} tokens are left")
        self.num_tokens = num_tokens
        """Tokens of the whole prompt."""
        self.max_tokens = max_tokens
        """Most tokens of prompt and reply together."""


class RequestRefused(EngineError):
    """The chat template or the endpoint takes no such request: a program that sends another one may
    do better."""


class NoEngineAnswered(EngineUnreachable):
    """Asking again later may help."""

    def __init__(self, message: str, num_closed: int) -> None:
        super().__init__(message)
        self.num_closed = num_closed
        """Connections that closed under this request so far: see ReplyRequest.num_closed."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Policy versions under which a reply may be sampled."""

    at_least: int | None = None
    """None: any."""
    only: bool = False
    """Whether later versions than `at_least` are refused as well."""

    def admit(self, version: int) -> bool:
        if self.at_least is None:
            return True
        return version == self.at_least if self.only else version >= self.at_least

    @property
    def of_earlier_tokens(self) -> "Versions":
        """Versions that hold for tokens that were sampled before the newest weights came."""
        return self if self.only else ANY

    def __str__(self) -> str:
        if self.at_least is None:
            return "a policy version"
        return f"version {self.at_least}" + ("" if self.only else " or later")


ANY = Versions()
WHOLE_DISTRIBUTION = SamplingConfig()
"""Nothing is set beside the temperature."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    """None: the engine draws as it likes. With a seed each token follows from the seed, its
    position and the distribution."""
    sampling: SamplingConfig = WHOLE_DISTRIBUTION


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
    engine: str = ""
    """Name of the engine that gave the last token; empty: not known."""


Keep = Callable[[ReplyPart], None]
"""Called with what is new of a reply while it is generated."""


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """The reply to one request of a rollout."""

    number: int
    """Number of the call that is asked for, among those of its epoch; it continues only calls of
    lower numbers."""
    request: ModelRequest
    stored: Sequence[StoredCall]
    """The epoch's calls by number: those that were stored when this one was asked. `begun` was
    sampled after the prompt that follows from them, so they are the same in each attempt."""
    rollout: RolloutId
    """Requests of one rollout prefer the same engine, for its cache."""
    request_id: str
    """Identity of this attempt."""
    temperature: float
    versions: Versions
    """Engines that serve another policy version are given the right one before they are asked."""
    seed: int | None = None
    """Seed of this reply's sampling; None: the engine draws as it likes."""
    begun: PartialCall | None = None
    """Beginning of this reply from an earlier attempt; only what is missing is asked for."""
    keep: Keep | None = None
    """Stores the reply, part by part, while it is generated."""
    num_closed: int = 0
    """Closed connections of an earlier attempt, as NoEngineAnswered told, so that a request that
    kills engines is not handed to all of them."""
    digests: Sequence[str] | None = None
    """`matching.chain` of the request, where it is at hand."""
    apart: bool = True
    """Whether text, reasoning and tool calls are told apart. Else the reply is one text, as the
    policy wrote it: an agent that offers no tools reads that itself."""
    sampling: SamplingConfig = WHOLE_DISTRIBUTION
    """How it is sampled beside its temperature; of one rollout always the same."""


@dataclass(frozen=True, slots=True)
class MadeReply:
    call: Call
    """Not stored yet."""
    reply: Reply
    """Reply that the one who asked is told."""
    chain_end: str
    """The digest of the whole request."""

    @property
    def history(self) -> str:
        """The digest of the request and the reply: what a request that continues them begins
        with."""
        return continued(self.chain_end, self.reply)


class Policy(Protocol):
    """Gives a campaign's replies, in tokens or in text. One per process and campaign, safe for
    concurrent calls on one event loop."""

    @property
    def resumes(self) -> bool:
        """Whether a reply that was lost under way is continued from its first tokens. Else it is
        asked for again, and an endpoint may have charged for both."""
        ...

    async def complete(self, ask: ReplyRequest) -> MadeReply:
        """Raises PromptTooLong; RequestRefused when another request may be taken; EngineError when
        nothing helps; EngineUnreachable, EngineBusy or EngineFailing when asking again may."""
        ...

    def reply_of(self, call: Call, request: ModelRequest) -> Reply:
        """Reply of a stored call, as a program is told it: the same each time."""
        ...

    async def count(
        self,
        request: ModelRequest,
        stored: Callable[[], Awaitable[Sequence[StoredCall]]],
        sampling: SamplingConfig = WHOLE_DISTRIBUTION,
    ) -> int:
        """Tokens of the prompt; nothing is asked. `stored` reads the epoch's calls; `sampling`: of
        the rollout. Raises RequestRefused."""
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
        versions: Versions = ANY,
        begun: PartialCall | None = None,
        keep: Keep | None = None,
        num_closed: int = 0,
        home: str = "",
    ) -> Completion:
        """Sample one completion; requests with the same `sticky` prefer the same engine: `home`,
        the name of the one that has what it continues, where that is known. A request cut off by an
        abort, or by the death of its engine, continues from its partial tokens, so a completion may
        span versions. `keep` sees them from engines that stream.
        Raises EngineError when the request is refused for good, NoEngineAnswered when no engine can
        be reached, UnknownWeights when an engine serves no known version among `versions`."""
        ...

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        """Load the newest weights into an engine that serves others. False: it was done already."""
        ...

    async def aclose(self) -> None: ...


class ChatText(Protocol):
    """A chat template as token arithmetic: `infra.policy.model.request_text.RequestText`."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    def under(self, variables: Mapping[str, Any]) -> "ChatText":
        """The same template with these variables, whatever this one has. Raises ModelError for
        one that it does not use."""
        ...

    def first_ids(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]
    ) -> Sequence[int]:
        """The whole prompt, up to where the reply begins. Raises RequestRefused."""
        ...

    def next_ids(self, messages: Sequence[ChatMessage], *, closed: bool) -> Sequence[int]:
        """Only the tokens to append after a served reply: `messages`, which may be none, and the
        next reply's beginning. `closed`: the reply ended with its end token; else that comes
        first. Raises RequestRefused."""
        ...

    def decode(self, ids: Sequence[int], *, apart: bool = True) -> str:
        """Text of a reply for people and for parsers. `apart`: with the tags that tell reasoning
        and tool calls from text."""
        ...

    def written(self, ids: Sequence[int]) -> str:
        """Text of a reply with all of its special tokens: where engines look for stop strings."""
        ...
