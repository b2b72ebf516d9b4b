"""Section [policy.sampling]: how replies are sampled beside their temperature, and when they end.

Invariants: a field that is unset takes part in nothing: no request has it, or has it at the value
by which an engine samples its whole distribution. What may be trained on is decided here, by what
the log-probs that engines return mean. Imported by `policy`, by evaluations, and by what asks.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo, field_validator

from mainspring.config.section import MANY_TOKENS, STORED, Section, Within

MAX_STOPS = 16
"""Stop strings of one reply: an engine looks for each after each token."""
CUTS: Mapping[str, float] = MappingProxyType({"top_p": 1.0, "top_k": -1, "min_p": 0.0})
"""Fields that cut the distribution, with the values that leave it whole."""
PENALTIES: Mapping[str, float] = MappingProxyType(
    {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
)
"""Fields that change it by the reply's own tokens, with the values that do not."""
TEMPLATES_OWN = frozenset(
    (
        *("messages", "tools", "add_generation_prompt", "continue_final_message", "conversation"),
        *("chat_template", "documents", "tokenize", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
        *("template_date", "strftime_now", "raise_exception", "additional_special_tokens"),
        *(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")),
    )
)
"""Names that a chat template gets from what renders it."""


def _json(given: Any) -> Any:
    """`given`; values that JSON does not have (dates, infinities) are refused by their name."""
    for name, value in given.items() if isinstance(given, dict) else ():
        if not _is_json(value):
            raise ValueError(f"{name} must be a value that JSON has, not {value!r}")
    return given


def _told(fields: Mapping[str, float]) -> str:
    return " and ".join(f"policy.sampling.{name} = {value:g}" for name, value in fields.items())


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


class SamplingConfig(Section):
    """How replies are sampled beside their temperature. What is unset changes nothing: engines
    sample the whole distribution, an endpoint of the OpenAI API chooses. A campaign trains with
    `stop` and `chat_template_kwargs` alone; evaluations take all."""

    top_p: Annotated[float | None, Within()] = Field(default=None, gt=0, le=1)
    """Only the most likely tokens that together have this probability. 1: all."""
    top_k: Annotated[int | None, Within(le=MANY_TOKENS)] = Field(default=None, ge=-1)
    """Only this number of the most likely tokens. -1: all."""
    min_p: Annotated[float | None, Within()] = Field(default=None, ge=0, le=1)
    """Only tokens of at least this share of the most likely one's probability. 0: all."""
    repetition_penalty: Annotated[float | None, Within()] = Field(default=None, gt=0, le=2)
    """Divides the positive logits of tokens that the reply has, and multiplies the negative ones
    (some servers count the prompt's tokens, too). 1: none."""
    presence_penalty: Annotated[float | None, Within()] = Field(default=None, ge=-2, le=2)
    """Taken from the logits of tokens that the reply has. 0: none."""
    frequency_penalty: Annotated[float | None, Within()] = Field(default=None, ge=-2, le=2)
    """Taken from a token's logit for each time that the reply has it. 0: none."""
    stop: tuple[str, ...] | None = Field(default=None, max_length=MAX_STOPS)
    """Texts that end a reply, beside its end token. Engines keep the tokens up to the one that
    completed the text; an endpoint of the OpenAI API leaves the text out."""
    chat_template_kwargs: Annotated[dict[str, JsonValue] | None, BeforeValidator(_json)] = None
    """Variables of the model's chat template, for example { enable_thinking = false }. Refused when
    the template does not use them."""

    @field_validator("top_k")
    @classmethod
    def _all_is_minus_one(cls, top_k: int | None, info: ValidationInfo) -> int | None:
        if top_k == 0 and info.context != STORED:
            raise ValueError("must be -1 (all tokens) or at least 1, not 0")
        return top_k

    @field_validator("stop")
    @classmethod
    def _texts_to_look_for(cls, stop: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if stop is not None and "" in stop:
            raise ValueError("has an empty text, which would end each reply at its first token")
        return stop

    @field_validator("chat_template_kwargs")
    @classmethod
    def _leave_the_prompt_alone(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        if taken := sorted(TEMPLATES_OWN & (given or {}).keys()):
            raise ValueError(
                f"{' and '.join(taken)} cannot be set here: the prompt is made by Mainspring"
            )
        return given

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are set, in the order of the section."""
        values = {name: getattr(self, name) for name in SamplingConfig.model_fields}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        return self.chat_template_kwargs or {}

    @property
    def stops(self) -> tuple[str, ...]:
        return self.stop or ()

    @property
    def cuts(self) -> dict[str, float]:
        """The fields that cut the distribution."""
        return self._changing(CUTS)

    @property
    def penalties(self) -> dict[str, float]:
        """The fields by which a token depends on the reply before it."""
        return self._changing(PENALTIES)

    def not_trained(self) -> str:
        """Why a campaign cannot train on tokens that were sampled so; empty: it can."""
        reasons = []
        if self.cuts:
            reasons.append(
                f"{_told(self.cuts)}: the log-probs that engines return are those of the whole "
                "distribution, and tokens would be drawn from a cut one"
            )
        if self.penalties:
            reasons.append(
                f"{_told(self.penalties)}: engines return log-probs after the penalty, and the "
                "trainer computes them without it"
            )
        if not reasons:
            return ""
        return (
            f"{'; '.join(reasons)}: importance ratios would be wrong; leave it out, and set it in "
            "[evaluation.sampling.SPLIT], where nothing is trained"
        )

    def idle_at(self, temperature: float | None) -> str:
        """The fields that have no effect at this temperature, in words; empty: all have one."""
        if temperature != 0 or not self.cuts:
            return ""
        return f"{' and '.join(self.cuts)} does nothing at temperature 0: set a temperature"

    def _changing(self, neutral: Mapping[str, float]) -> dict[str, float]:
        return {
            name: value for name, value in self.given.items() if value != neutral.get(name, value)
        }

    def over(self, base: "SamplingConfig") -> "SamplingConfig":
        """The fields that are set here, and those of `base` for the rest."""
        return SamplingConfig.model_construct(**(base.given | self.given))
