"""A completion under way at SGLang's API, possibly over several requests, and its policy versions.

Invariant: exactly one log-prob and one version per token. Used by the client beside this file.
"""

from dataclasses import dataclass, field
from typing import Any

from infra.policy.engines.reply_stream import Piece
from infra.policy.protocol import Completion, Keep, MalformedReply, Versions
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError
from mainspring.trajectories.turns import PartialCall, ReplyPart, VersionSpan, join_parts

WHOLE = frozenset({"stop", "length"})
"""Finish types that the policy itself ended a completion with; after any other it is continued."""
ANY_VERSION = 0
"""Recorded for weights that no campaign made."""


class UnknownWeights(EngineError):
    """The engine does not serve the campaign's weights (most likely it was restarted): publish the
    current version to `engine` (see EngineClient.reconcile) and ask again."""

    def __init__(self, engine: str, served: str, versions: Versions) -> None:
        super().__init__(
            f"policy engine {engine} serves weights {served!r}, expected {versions}",
            remedy="publish the campaign's current weights to it",
        )
        self.engine = engine
        self.served = served
        self.begun: PartialCall | None = None
        """Beginning of the reply, from before that engine was asked."""
        self.num_closed = 0
        """Connections that had closed under the request by then: see ReplyRequest.num_closed."""


@dataclass(slots=True)
class Partial:
    """A completion under way, possibly over several requests."""

    any_weights: bool
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    latency_s: float = 0.0
    labels: set[WeightLabel] = field(default_factory=set)
    """Labels of the weights under which tokens were sampled, and of those served at the end."""

    def add(self, engine: str, answer: dict[str, Any], versions: Versions, silent_s: float) -> str:
        """Append one answer of `engine`, which was silent so long; returns its finish type."""
        try:
            meta = answer["meta_info"]
            ids, entries = answer["output_ids"], meta["output_token_logprobs"]
            finish: dict[str, Any] = meta["finish_reason"]
            ended = str(finish["type"])
            spans = [(str(s["version"]), s["start"], s["end"]) for s in meta["weight_versions"]]
            served = str(meta["weight_version"])
            logprobs = [float(entry[0]) for entry in entries]
            covered = sum(end - start for _, start, end in spans)
            if [entry[1] for entry in entries] != ids or covered != len(ids):
                raise ValueError("tokens, log-probs and version spans differ")
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise MalformedReply(
                f"policy engine {engine} sent an answer of another shape: {error!r}",
                remedy="is it SGLang 0.5.23 or later, or `mainspring serve`?",
            ) from error
        if ended not in WHOLE and (finish.get("status_code") or 0) // 100 == 4:
            raise EngineError(
                f"policy engine {engine} refused the request: {finish.get('message')}"
            )
        for version, start, end in spans:
            self._extend(self._version(engine, version, versions.of_earlier_tokens), end - start)
        self._version(engine, served, versions)
        self.output_ids += ids
        self.logprobs += logprobs
        self.latency_s += max(0.0, float(meta.get("e2e_latency") or 0.0) - silent_s)
        return ended

    def _version(self, engine: str, served: str, versions: Versions) -> int:
        if self.any_weights:
            return ANY_VERSION
        label = weight_label(engine, served, versions)
        self.labels.add(label)
        return label.version

    def _extend(self, version: int, count: int) -> None:
        start = self.spans[-1].end if self.spans else 0
        end = start + count
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        if count:
            self.spans.append(VersionSpan(version, start, end))

    @classmethod
    def continuing(cls, any_weights: bool, begun: PartialCall | None) -> "Partial":
        if begun is None:
            return cls(any_weights)
        return cls(
            any_weights,
            list(begun.completion_ids),
            list(begun.logprobs),
            list(begun.spans),
            begun.latency_s,
        )

    def part(self, engine: str, piece: Piece, versions: Versions) -> ReplyPart:
        """The new tokens of a piece of the request under way. Raises as `add`."""
        new = Partial(self.any_weights, latency_s=self.latency_s)
        new.add(engine, cut_off(piece.answer), versions, 0.0)
        start = len(self.output_ids) + piece.start
        spans = [VersionSpan(s.version, start + s.start, start + s.end) for s in new.spans]
        return ReplyPart(
            start, tuple(new.output_ids), tuple(new.logprobs), tuple(spans), new.latency_s
        )

    def since(self, start: int) -> ReplyPart:
        """Its tokens from `start` on."""
        return ReplyPart.of_call(self.call(), start)

    def call(self) -> PartialCall:
        return PartialCall(
            tuple(self.output_ids), tuple(self.logprobs), tuple(self.spans), self.latency_s
        )

    def completion(self, finish_reason: str, engine: str = "") -> Completion:
        return Completion(
            engine=engine,
            output_ids=tuple(self.output_ids),
            logprobs=tuple(self.logprobs),
            spans=tuple(self.spans),
            finish_reason=finish_reason,
            latency_s=self.latency_s,
        )


class KeptParts:
    """Gives the parts of a completion to `keep` while it is streamed, so that they follow one
    another and are of one sampling; where tokens were lost, it begins anew at 0."""

    def __init__(self, partial: Partial, versions: Versions, keep: Keep) -> None:
        self._partial = partial
        self._versions = versions
        self._keep = keep
        self._end = 0
        """Tokens of the completion that `keep` has."""

    def take(self, engine: str, piece: Piece) -> None:
        try:
            part = self._partial.part(engine, piece, self._versions)
        except UnknownWeights:
            return  # the end of the reply is refused for it
        if piece.start == 0:
            part = join_parts([self._partial.since(self._end), part])
        elif part.start != self._end:
            return  # after a piece that was not kept
        self._end = part.end
        self._keep(part)

    def lose(self) -> None:
        """The request under way ended without an answer: its tokens are sampled again."""
        self._end = 0


def cut_off(answer: dict[str, Any]) -> dict[str, Any]:
    """The last piece of a stream that ended too early, as an answer that was aborted there."""
    meta = dict(answer.get("meta_info") or {}) | {"finish_reason": {"type": "abort"}}
    return {**answer, "meta_info": meta}


def weight_label(engine: str, served: str, versions: Versions) -> WeightLabel:
    """Raises UnknownWeights unless `served` is a policy version, one of `versions`."""
    label = WeightLabel.parse(served)
    if label is None or not versions.admit(label.version):
        raise UnknownWeights(engine, served, versions)
    return label
