"""Section [judges.NAME]: a model that scores turns or whole rollouts, and how its votes are read.

Invariants: what a vote form needs is there and nothing that it does not read; a prompt's file is
read with the campaign file (`mainspring/config/files/reading.py`), so that a stored judge depends
on no file. Which part of the reward uses a judge is in `reward`; its prompt is tried in
`mainspring.rewards.judge_prompts`.
"""

from enum import StrEnum
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from mainspring.config.policy import checked_url
from mainspring.config.section import MANY_TOKENS, STORED, YEAR_S, Counts, Section, Switch, Within

ENDPOINT = "openai"
"""The kind of a judge that is an endpoint of chat completions."""
ENGINE = "engine"
"""The kind of a judge on engines of one's own."""
MANY_CHARS = 10_000_000
"""More characters than a prompt can have."""
NAME = r"[A-Za-z0-9_-]{1,40}"
"""Names of judges: they stand in ids of reward parts and in Temporal's summaries."""


class JudgeScope(StrEnum):
    """Scope of one judgement."""

    TURNS = "turns"
    """One turn: its reply, its commands and what they gave."""
    ROLLOUT = "rollout"
    """A whole rollout: its turns and its patch, without its verdict."""


class QuestionScope(StrEnum):
    """Scope of one question to a judge."""

    TURNS = "turns"
    """One turn: see JudgeScope."""
    ROLLOUT = "rollout"
    """A whole rollout, likewise."""
    REWARD = "reward"
    """A prompt of a reward function of one's own."""


class VoteForm(StrEnum):
    """How a vote is read from a reply."""

    BOXED = "boxed"
    r"""The first \boxed{...} that holds 1, +1 or -1."""
    NUMBER = "number"
    """The number from `low` to `high` in the reply's last line: alone, or after a colon."""
    JSON = "json"
    """The number in `field` of the last JSON object that has it."""


class JudgeConfig(Section):
    kind: str = ENDPOINT
    """"openai", an endpoint of chat completions; "engine", engines of your own; or a class of your
    own as "package.module:Class" (docs/extending.md)."""
    url: Annotated[str, Counts.AT_ONCE] = ""
    """Base URL of the endpoint, without /chat/completions."""
    engines: Annotated[tuple[str, ...], Counts.AT_ONCE] = ()
    """Base URLs of engines that serve `model`, with `kind = "engine"`. `mainspring train` starts
    those on this machine that do not answer."""
    model: str = ""
    """Name of the model at the endpoint; with `kind = "engine"` its directory, which rollout
    workers read the tokenizer from."""
    api_key_env: str = ""
    """Name of the environment variable of the rollout workers that holds the endpoint's key.
    Unset: no key is sent."""
    votes: Annotated[int, Within()] = Field(default=3, ge=1, le=100)
    """Number of votes of one judgement."""
    temperature: Annotated[float, Within()] = Field(default=1.0, ge=0, le=2)
    """Sampling temperature of a vote."""
    top_p: Annotated[float, Within()] = Field(default=1.0, gt=0, le=1)
    """Probability mass that a vote is sampled from."""
    max_new_tokens: Annotated[int, Within(le=MANY_TOKENS)] = Field(default=4096, ge=1)
    """Maximum number of tokens of one vote."""
    request_timeout_s: Annotated[float, Within(le=YEAR_S), Counts.AT_ONCE] = Field(
        default=600.0, gt=0
    )
    """Time limit of one request; then it is repeated."""
    retries: Annotated[int, Within(), Counts.AT_ONCE] = Field(default=30, ge=0, le=1000)
    """Number of tries after the first one that failed (no connection, a timeout, HTTP 429 or 5xx).
    After these the judgement is missing."""
    concurrency: Annotated[int, Within(), Counts.AT_ONCE] = Field(default=32, ge=1, le=10_000)
    """Number of requests that one process has under way at once."""
    required: Switch = False
    """Whether a missing judgement masks its rollout. Else it is left out of the mean."""
    deterministic: Switch = False
    """Whether its votes follow from the prompt and the number of the vote alone, which
    `schedule = "reproducible"` needs. You promise it, also of engines and endpoints."""
    prompt: str | None = None
    """Prompt of a vote, a Jinja2 template (docs/rewards.md has its fields). Unset: Mainspring's."""
    prompt_file: str | None = None
    """File that holds the prompt, absolute or relative to the campaign file."""
    vote: VoteForm = VoteForm.BOXED
    """How a vote is read."""
    low: Annotated[float | None, Within(ge=-1e12, le=1e12)] = None
    """Lowest number of a valid vote, with `vote = "number"` or "json"."""
    high: Annotated[float | None, Within(ge=-1e12, le=1e12)] = None
    """Highest number of a valid vote."""
    field: str | None = Field(default=None, min_length=1)
    """Name of the number in a JSON vote."""
    issue_chars: Annotated[int, Within(le=MANY_CHARS)] = Field(default=8000, ge=1)
    """Characters shown of the issue. Longer texts lose their middle, with the number of
    characters in its place."""
    steps: Annotated[int, Within()] = Field(default=8, ge=0, le=10_000)
    """Number of turns shown before the one that is judged."""
    step_output_chars: Annotated[int, Within(le=MANY_CHARS)] = Field(default=1000, ge=1)
    """Characters shown of each command and of each output of these turns, and of those of a
    rollout."""
    output_chars: Annotated[int, Within(le=MANY_CHARS)] = Field(default=4000, ge=1)
    """Characters shown of each output of the turn that is judged."""
    reply_chars: Annotated[int, Within(le=MANY_CHARS)] = Field(default=8000, ge=1)
    """Characters shown of a reply."""
    rollout_chars: Annotated[int, Within(le=MANY_CHARS)] = Field(default=100_000, ge=1)
    """Characters shown of all turns of a rollout; those in the middle are left out."""
    patch_chars: Annotated[int, Within(le=MANY_CHARS)] = Field(default=20_000, ge=1)
    """Characters shown of a rollout's patch."""

    @field_validator("engines")
    @classmethod
    def _are_urls(cls, engines: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        checked = tuple(checked_url(url, info) for url in engines)
        for url in checked if info.context != STORED else ():
            if urlsplit(url).port == 0:
                raise ValueError(f"{url!r} has port 0: give the engine's port")
        return checked

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str, info: ValidationInfo) -> str:
        return checked_url(url, info) if url else url

    @model_validator(mode="after")
    def _an_endpoint_has_an_address(self) -> Self:
        needed = {
            ENDPOINT: ("an endpoint", {"url": self.url, "model": self.model}),
            ENGINE: ("engines", {"engines": self.engines, "model": self.model}),
        }
        what, fields = needed.get(self.kind, ("", {}))
        for name, value in fields.items():
            if not value:
                raise ValueError(f'{name} is missing: kind = "{self.kind}" asks {what}')
        if self.engines and self.kind == ENDPOINT:
            raise ValueError(f'engines are for kind = "{ENGINE}": kind = "{ENDPOINT}" has url')
        if self.url and self.kind == ENGINE:
            raise ValueError(f'url is for kind = "{ENDPOINT}": kind = "{ENGINE}" has engines')
        return self

    @model_validator(mode="after")
    def _prompt_is_read(self, info: ValidationInfo) -> Self:
        if self.prompt_file is not None and info.context != STORED:
            if self.prompt is not None:
                raise ValueError("prompt and prompt_file exclude each other: give one of them")
            raise ValueError("prompt_file is read with a campaign file only: give prompt here")
        return self

    @model_validator(mode="after")
    def _vote_can_be_read(self) -> Self:
        bounds = (self.low, self.high)
        if self.vote is VoteForm.BOXED and bounds != (None, None):
            raise ValueError('vote = "boxed" reads +1 or -1: low and high are for "number"')
        if self.vote is VoteForm.NUMBER and None in bounds:
            raise ValueError('vote = "number" needs low and high')
        if (self.low is None) is not (self.high is None):
            raise ValueError("low and high belong together: give both or none")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low = {self.low:g} must be below high = {self.high:g}")
        if self.vote is VoteForm.JSON and self.field is None:
            raise ValueError('vote = "json" needs field, the name of the number')
        if self.vote is not VoteForm.JSON and self.field is not None:
            raise ValueError(f'field has no effect with vote = "{self.vote}": it is for "json"')
        return self
