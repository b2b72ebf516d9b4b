"""Engines that say what they are told to, and keep what they consumed and produced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from infra.policy.protocol import ANY, Completion, Keep, SamplingParams, Versions
from infra.policy.weight_label import WeightLabel
from mainspring.trajectories.turns import PartialCall, VersionSpan

LOGPROB_STEP = 1 / 1024
"""Log-probs are exact in 32 bits, and each is another: it tells which token was sampled."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request that was answered."""

    consumed: list[int]
    produced: tuple[int, ...]
    first: int
    """Place of its first token among all that were sampled."""
    versions: tuple[int, ...]
    """Of each token."""


@dataclass(slots=True)
class ScriptedEngines:
    """`says`: the tokens of the next reply, its end included, given the bound on them; and after
    how many of them the weights are updated."""

    says: Callable[[int], tuple[list[int], list[int]]]
    version: int = 0
    served: dict[str, Served] = field(default_factory=dict)
    """By request."""
    params: dict[str, SamplingParams] = field(default_factory=dict)
    num_sampled: int = 0

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
        before = begun or PartialCall((), (), (), 0.0)
        left = params.max_new_tokens - len(before.completion_ids)
        said, updates = self.says(left)
        new = said[:left]
        spans = list(before.spans)
        made: list[int] = [v for span in spans for v in [span.version] * (span.end - span.start)]
        for place in range(len(new)):
            self.version += updates.count(place)
            made.append(self.version)
            start = len(made) - 1
            if spans and spans[-1].version == self.version:
                start = spans.pop().start
            spans.append(VersionSpan(self.version, start, len(made)))
        produced = (*before.completion_ids, *new)
        # What was begun was sampled just before.
        first = self.num_sampled - len(before.completion_ids)
        logprobs = [-LOGPROB_STEP * (self.num_sampled + place) for place in range(len(new))]
        self.num_sampled += len(new)
        ended = bool(produced) and produced[-1] in params.stop_token_ids
        self.served[request_id] = Served(list(input_ids), produced, first, tuple(made))
        self.params[request_id] = params
        return Completion(
            produced,
            (*before.logprobs, *logprobs),
            tuple(spans),
            "stop" if ended else "length",
            0.25,
        )

    async def publish(self, engine: str, weights: Path, label: WeightLabel) -> None:
        raise AssertionError("a policy publishes nothing by itself")

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        return True

    async def aclose(self) -> None: ...


async def no_weights(version: int | None) -> tuple[Path, WeightLabel]:
    raise AssertionError("these engines serve every version")
