"""A request inside the engine: its sampling options, its tokens so far, and its answer.

`SamplingOptions` accepts the keys of SGLang's `sampling_params`; those the engine does not
implement are accepted at their neutral value and refused otherwise, never ignored.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    """Also ignores `stop_token_ids`: the reply ends at `max_new_tokens`."""
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    """Keep the stop token in "text"."""
    # Not implemented: only these values.
    n: int = 1
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
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
        elif len(self.logprobs) >= self.options.max_new_tokens:
            self.finish_reason = {"type": "length", "length": len(self.logprobs)}
        if self.after_token is not None:
            self.after_token(self)

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
