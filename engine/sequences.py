"""A request inside the engine: its sampling options, its tokens so far, and its answer.

`SamplingOptions` accepts the keys of SGLang's `sampling_params`; those the engine does not
implement are accepted at their neutral value and refused otherwise, never ignored.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Decode = Callable[[list[int]], str]
ALL_TOKENS = 1 << 30
"""SGLang's default top_k."""


class InvalidRequest(Exception):
    """A well-formed request that cannot be served: 400 {"error": {"message": ..}}."""


class SchemaViolation(Exception):
    """A request of the wrong shape: 400 {"error": ".."}."""


class SamplingOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    max_new_tokens: int = Field(128, ge=1)
    min_new_tokens: int = Field(0, ge=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(ALL_TOKENS, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    stop: str | tuple[str, ...] | None = None
    """Texts that end a reply; the tokens up to the one that completed the text stay."""
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    """Also ignores `stop_token_ids`: the reply ends at `max_new_tokens`."""
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    """Keep the stop token or the stop string in "text"."""
    # Not implemented: only these values.
    n: int = 1
    stop_regex: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    custom_params: dict[str, Any] | None = None
    beam_width: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1

    @property
    def stops(self) -> tuple[str, ...]:
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        return tuple(stop for stop in stops if stop)

    @property
    def penalizes(self) -> bool:
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)

    @property
    def cuts_vocabulary(self) -> bool:
        return self.top_p < 1 or self.min_p > 0 or 0 < self.top_k < ALL_TOKENS


NOT_IMPLEMENTED = tuple(SamplingOptions.model_fields)[
    tuple(SamplingOptions.model_fields).index("n") :
]


def parse_options(raw: dict[str, Any]) -> SamplingOptions:
    """Raises SchemaViolation or InvalidRequest."""
    try:
        options = SamplingOptions.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            fields = ", ".join(f"`{name}`" for name in SamplingOptions.model_fields)
            raise SchemaViolation(f"unknown field `{key}`, expected one of {fields}") from None
        raise SchemaViolation(f"sampling_params.{key}: {first['msg']}") from None
    for key in NOT_IMPLEMENTED:
        if getattr(options, key) not in (SamplingOptions.model_fields[key].default, [], {}, ""):
            raise InvalidRequest(f"sampling_params.{key} is not implemented by the CPU engine")
    return options


class StopStrings:
    """The texts that end a request, looked for after each token as SGLang does: in the text of its
    last tokens, special ones included."""

    def __init__(self, texts: Rows[str], decode: Decode) -> None:
        self._texts = texts
        self._decode = decode
        # Each token has a byte at least, so that no text has more tokens than this, whichever.
        self._num_tokens = max((len(text.encode()) for text in texts), default=0) + 1

    def completed(self, ids: list[int], start: int) -> str | None:
        """The text that the last token completed, in a reply that begins at `start`."""
        if not self._texts:
            return None
        tail = self._decode(ids[max(start, len(ids) - self._num_tokens) :])
        return next((text for text in self._texts if text in tail), None)


NO_STOPS = StopStrings((), lambda ids: "")


@dataclass(slots=True, eq=False)
class Sequence:
    """Only the engine thread touches one after it was submitted, until `done` resolves."""

    rid: str
    ids: list[int]
    """Prompt, then output."""
    options: SamplingOptions
    stop_ids: frozenset[int]
    """The model's end tokens and the request's; empty with `ignore_eos`."""
    prompt_tokens: int
    stop_strings: StopStrings = NO_STOPS
    adapter: str | None = None
    """Name of the adapter that it runs with."""
    logprobs: list[float] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    """{"version", "start", "end"} over output tokens."""
    cached_tokens: int = 0
    num_retractions: int = 0
    finish_reason: dict[str, Any] | None = None
    done: "Future[Sequence]" = field(default_factory=Future)
    after_token: "Callable[[Sequence], None] | None" = None
    """Called on the engine thread."""
    started_at: float = field(default_factory=time.monotonic)

    @property
    def output_ids(self) -> list[int]:
        return self.ids[self.prompt_tokens :]

    def append(self, token: int, logprob: float, version: str) -> None:
        position = len(self.logprobs)
        if not self.spans or self.spans[-1]["version"] != version:
            self.spans.append({"version": version, "start": position, "end": position})
        self.spans[-1]["end"] = position + 1
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids:
            self.finish_reason = {"type": "stop", "matched": token}
        elif (text := self.stop_strings.completed(self.ids, self.prompt_tokens)) is not None:
            self.finish_reason = {"type": "stop", "matched": text}
        elif len(self.logprobs) >= self.options.max_new_tokens:
            self.finish_reason = {"type": "length", "length": len(self.logprobs)}
        if self.after_token is not None:
            self.after_token(self)

    def text(self, decode: Decode, start: int) -> str:
        """Text of the reply's tokens from `start` on, without what ended it, unless that is asked
        for."""
        ids, finish = self.output_ids, self.finish_reason or {}
        if finish.get("type") != "stop" or self.options.no_stop_trim:
            return decode(ids[start:])
        if isinstance(finish["matched"], int):
            return decode(ids[start:-1])
        # The stop string may have begun before `start`.
        before, _, _ = decode(ids).partition(finish["matched"])
        return before[len(decode(ids[:start])) :]

    def abort(self) -> None:
        self.finish_reason = {
            "type": "abort",
            "message": "Aborted",
            "status_code": None,
            "err_type": None,
        }
        self.resolve()

    def resolve(self) -> None:
        # The client may have gone away and cancelled its wait.
        if self.done.set_running_or_notify_cancel():
            self.done.set_result(self)

    def meta_info(
        self, served_version: str, start: int = 0, *, with_logprobs: bool
    ) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.logprobs),
            "cached_tokens": self.cached_tokens,
            "cached_tokens_details": None,
            "reasoning_tokens": 0,
            "weight_version": self.spans[-1]["version"] if self.spans else served_version,
            # A copy: a piece of a stream is sent while the reply grows.
            "weight_versions": [dict(span) for span in self.spans],
            "num_retractions": self.num_retractions,
            "dp_rank": None,
            "e2e_latency": time.monotonic() - self.started_at,
            "response_sent_to_client_ts": time.time(),
        }
        if with_logprobs:
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [
                [logprob, token, None]
                for logprob, token in zip(
                    self.logprobs[start:], self.output_ids[start:], strict=True
                )
            ]
            meta["output_token_logprobs_length"] = len(self.logprobs)
        return meta
