"""Section [policy]: the model, the engines that serve it, and how it is sampled."""

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from mainspring.algorithms.gap import Dtype
from mainspring.config.sampling import SamplingConfig
from mainspring.config.section import BUNDLED, MANY_TOKENS, STORED, YEAR_S, Counts, Section, Within
from mainspring.status import PolicyApi, Publish

REGISTERED = "registered"
"""In the place of addresses: engines that report themselves."""
ENDPOINTS_OWN = "default"
"""In the place of a temperature: none is sent."""


def checked_url(url: str, info: ValidationInfo) -> str:
    """A base URL without a slash at its end. Raises ValueError for what is none, unless it is read
    from the store."""
    if info.context != STORED and (fault := url_fault(url)):
        raise ValueError(f"{url!r} is not an http(s) URL: {fault}")
    return url.rstrip("/")


def url_fault(url: str) -> str:
    """Why `url` is no base URL of a service, in words; empty: it is one."""
    if any(character.isspace() or not character.isprintable() for character in url):
        return "it has a blank or a character that cannot be printed"
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        is_port = "port" in str(error).lower()
        return "its port is no number up to 65535" if is_port else "its IPv6 address is not valid"
    if parts.scheme not in ("http", "https"):
        return "it must begin with http:// or https://"
    if not host:
        return "it has no host"
    if port is None and parts.netloc.endswith(":"):
        return "it has a colon and no port"
    if parts.query or parts.fragment:
        return "it has a part after ? or #, which no path can follow"
    return ""


def same_address(one: str, other: str) -> bool:
    """Whether two base URLs lead to one service as they are written: http://localhost:80/ and
    http://127.0.0.1. Names are not resolved."""
    return _address(one) == _address(other)


def _address(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, "127.0.0.1" if host == "localhost" else host, port, parts.path.rstrip("/")


class PolicyConfig(Section):
    api: PolicyApi = PolicyApi.SGLANG
    """API of the engines."""
    model: str = BUNDLED
    """"bundled" (made and warm-started by the campaign), a Hugging Face model directory (absolute,
    or relative to the campaign file), or with the OpenAI API the model's name at the endpoint."""
    engines: Annotated[tuple[str, ...], Counts.AT_ONCE] = ("http://127.0.0.1:30000",)
    """Base URLs of the engines that the campaign begins with; with port 0 `mainspring train`
    chooses a free port. More can join (`mainspring engine add`, `mainspring serve --campaign`);
    "registered": all of them join so."""
    dtype: Dtype = Dtype.FLOAT32
    """Precision of the engines; the default bounds of [trainer.gap] depend on it."""
    max_context: Annotated[int, Within(le=MANY_TOKENS)] = Field(default=32_768, ge=64)
    """Prompt plus reply never exceed this many tokens."""
    max_new_tokens: Annotated[int, Within(le=MANY_TOKENS)] = Field(default=4096, ge=1)
    """Maximum number of tokens of one reply."""
    temperature: Annotated[float | None, Within()] = Field(default=1.0, ge=0, le=2)
    """Sampling temperature; greedy evaluations use 0. "default", with the OpenAI API alone:
    requests leave it out, for models that refuse the field; the endpoint's own value counts."""
    sampling: SamplingConfig = SamplingConfig()
    publish: Publish = Publish.DISK
    """How engines get new weights: "disk", they load the files of each version; "collective",
    the trainer's ranks send them to all engines at once over a process group (NCCL on GPUs, gloo on
    CPUs), and what this does not reach loads the files (engines must reach the trainer's host); or
    "adapter", they keep the frozen model and load the adapters of each version alone (with
    [trainer.lora])."""
    request_timeout_s: Annotated[float, Within(le=YEAR_S), Counts.ROLLOUTS] = Field(
        default=600.0, gt=0
    )
    """Time limit of one reply; then the request is repeated."""

    @field_validator("engines", mode="before")
    @classmethod
    def _none_listed(cls, engines: object) -> object:
        return () if engines == REGISTERED else engines

    @field_validator("engines")
    @classmethod
    def _urls(cls, engines: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        urls = tuple(checked_url(url, info) for url in engines)
        for number, url in enumerate(urls):
            same = [other for other in urls[:number] if same_address(other, url)]
            # Each port 0 becomes a free one.
            if same and urlsplit(url).port != 0 and info.context != STORED:
                twice = "twice" if same[0] == url else f"as {same[0]} and as {url}"
                raise ValueError(f"one engine is listed {twice}: list each address once")
        return urls

    @field_validator("temperature", mode="before")
    @classmethod
    def _left_out(cls, temperature: object) -> object:
        return None if temperature == ENDPOINTS_OWN else temperature

    @model_validator(mode="after")
    def _engines_get_a_temperature(self) -> Self:
        if self.temperature is None and self.api is not PolicyApi.OPENAI:
            raise ValueError(
                'temperature = "default" needs api = "openai": engines sample at the temperature '
                "that the trainer computes with"
            )
        return self

    @model_validator(mode="after")
    def _endpoints_are_listed(self) -> Self:
        if not self.engines and self.api is PolicyApi.OPENAI:
            raise ValueError(
                'engines = "registered" needs api = "sglang" or "vllm": give the endpoint'
            )
        return self

    @property
    def rollout_temperature(self) -> float:
        """As rollouts store it; 1 where the endpoint's own counts."""
        return 1.0 if self.temperature is None else self.temperature

    @model_validator(mode="after")
    def _room_for_a_prompt(self) -> Self:
        if self.max_new_tokens >= self.max_context:
            raise ValueError("max_new_tokens must be below max_context")
        return self

    @model_validator(mode="after")
    def _engines_take_weights(self) -> Self:
        if self.publish is not Publish.DISK and self.api is not PolicyApi.SGLANG:
            raise ValueError(f'publish = "{self.publish}" needs api = "sglang": it sends weights')
        return self
