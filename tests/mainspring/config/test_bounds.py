"""Every number of every configuration: it has bounds at both ends, and what no number of its kind
can be is refused. Walks the models, so that a field that is added is tested too."""

import math
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from mainspring.algorithms.gap import GapConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationFile
from mainspring.config.evaluations.regrade import RegradeConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.section import STORED
from mainspring.config.sft import SftConfig, SftFile

FILES: tuple[type[BaseModel], ...] = (
    CampaignConfig,
    EvaluationFile,
    SftFile,
    SftConfig,
    VerificationConfig,
    RegradeConfig,
)
NEVER = (math.nan, math.inf, -math.inf, True, False, 1e308, -1e308, 10**400, -(10**400))
MAY_BE_NEGATIVE = {
    ("AlgorithmConfig", "keep_reward"),
    ("JudgeConfig", "low"),
    ("JudgeConfig", "high"),
    ("EnvironmentConfig", "resolved_at"),
    ("RewardPart", "weight"),
    ("RewardPart", "options"),
    ("SamplingConfig", "top_k"),
    ("SamplingConfig", "presence_penalty"),
    ("SamplingConfig", "frequency_penalty"),
    ("SftSource", "min_reward"),
}
OWN = {("AgentConfig", "options")}
"""Of a client of one's own: it knows what they mean."""


@dataclass(frozen=True)
class Number:
    model: type[BaseModel]
    name: str

    @property
    def field(self) -> FieldInfo:
        return self.model.model_fields[self.name]

    @property
    def key(self) -> tuple[str, str]:
        """With the class that declares it."""
        declares = [
            c for c in self.model.__mro__ if self.name in vars(c).get("__annotations__", {})
        ]
        return declares[0].__name__, self.name

    def bound(self, *names: str) -> float | None:
        found = [getattr(each, n, None) for each in self.field.metadata for n in names]
        return next((each for each in found if each is not None), None)

    def holding(self, value: Any) -> Any:
        """As the field takes it: alone, in a list or in a table."""
        of = self.field.annotation
        if typing.get_origin(of) is tuple:
            return [value] + [0.5] * (len(typing.get_args(of)) - 1)
        return {"x": value} if typing.get_origin(of) is dict else value

    def refused(self, value: Any, context: Any = None) -> str | None:
        """Why; None when it is accepted, or when another field of the model is at fault."""
        try:
            self.model.model_validate({self.name: self.holding(value)}, context=context)
        except ValidationError as error:
            mine = [each for each in error.errors() if each["loc"][:1] == (self.name,)]
            return mine[0]["type"] if mine else None
        return None


def parts(annotation: Any) -> set[Any]:
    inner = [parts(each) for each in typing.get_args(annotation)]
    return {annotation}.union(*inner)


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for each in parts(field.annotation):
            is_class = isinstance(each, type) and not isinstance(each, types.GenericAlias)
            if is_class and issubclass(each, BaseModel):
                yield from models(each)


def numbers() -> list[Number]:
    found = {
        Number(model, name)
        for file in FILES
        for model in models(file)
        for name, field in model.model_fields.items()
        if {int, float} & parts(field.annotation)
    }
    kept = [each for each in found if each.key not in OWN]
    return sorted(kept, key=lambda each: (str(each.key), each.model.__name__))


NUMBERS = numbers()
each_number = pytest.mark.parametrize(
    "number", NUMBERS, ids=lambda n: f"{n.model.__name__}.{n.name}"
)


def test_the_walk_finds_the_sections() -> None:
    assert {each.model for each in NUMBERS} >= {GapConfig, CampaignConfig}
    assert len({each.key for each in NUMBERS}) > 100


@each_number
def test_a_number_has_a_bound_at_both_ends(number: Number) -> None:
    least, most = number.bound("ge", "gt"), number.bound("le", "lt")
    assert least is not None and most is not None, number
    assert least >= 0 or number.key in MAY_BE_NEGATIVE
    assert -1e13 < least < most < 1e13


@each_number
def test_what_is_no_number_of_a_kind_is_refused(number: Number) -> None:
    for value in NEVER:
        assert number.refused(value), f"{number} = {value}"


@each_number
def test_around_its_bounds(number: Number) -> None:
    least, most = number.bound("ge", "gt"), number.bound("le", "lt")
    assert least is not None and most is not None
    assert number.refused(least - 1) and number.refused(most + 1)
    assert bool(number.refused(least)) == (number.bound("gt") is not None)
    assert bool(number.refused(most)) == (number.bound("lt") is not None)
    if number.key not in MAY_BE_NEGATIVE:
        assert number.refused(-1)
    # Negative zero is zero.
    if float in parts(number.field.annotation):
        assert bool(number.refused(-0.0)) == bool(number.refused(0.0))


@each_number
def test_text_is_no_number_and_is_spared_where_it_was_stored(number: Number) -> None:
    """It would be read as one: a quoted number in TOML is a mistake."""
    least, most = number.bound("ge", "gt"), number.bound("le", "lt")
    assert least is not None and most is not None
    text = str(int(least) + 1 if least + 1 < most else (least + most) / 2)
    assert number.refused(text) == "text_for_number"
    assert number.refused(text, STORED) is None


@pytest.mark.parametrize("given", ["true", "yes", "1", 1, 0, 1.0])
def test_a_switch_is_true_or_false(given: object) -> None:
    for file in FILES:
        for model in models(file):
            for name, field in model.model_fields.items():
                if parts(field.annotation) <= {bool, bool | None, type(None)}:
                    switch = Number(model, name)
                    assert switch.refused(given) == "bool_type", switch
                    assert switch.refused(given, STORED) is None, switch


def test_betas_that_torch_refuses() -> None:
    for betas in ([1.0, 2.0], [-1, 0.9], [0.9, 1.0], [0.9, True]):
        raw = {"name": "x", "trainer": {"warm_start": {}, "optimizer": {"betas": betas}}}
        with pytest.raises(ValidationError, match="betas"):
            CampaignConfig.model_validate(raw)


def test_a_stored_configuration_is_spared_what_came_later() -> None:
    """Of those that an earlier version accepted none becomes unreadable."""
    trainer = {
        "warm_start": {"lr": 50.0},
        "optimizer": {"betas": [1.0, 2.0], "lr": 1e5, "max_grad_norm": 1e300},
        "clip_high": 1e9,
        "num_steps": 10**9,
    }
    raw = {"name": "x", "trainer": trainer}
    with pytest.raises(ValidationError):
        CampaignConfig.model_validate(raw)
    read = CampaignConfig.model_validate(raw, context=STORED).trainer
    assert (read.optimizer.betas, read.clip_high, read.num_steps) == ((1.0, 2.0), 1e9, 10**9)


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:1", "ftp://host", "http://", "http:///v1", "http://:80", "", "http:"),
        *("http://h:99999", "http://h:abc", "http://h:-1", "http://h:", "http://h:8o"),
        *(
            "http://[::1",
            "http://[::g]:1",
            "http://]:1",
            "http://h :1",
            "http://h\n",
            "http://h/\x00",
        ),
        *("http://h/v1?key=1", "http://h/v1#part"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_and_spared_where_it_was_stored(url: str) -> None:
    raw = {"model": "none", "api": "openai", "engines": [url]}
    with pytest.raises(ValidationError) as refused:
        PolicyConfig.model_validate(raw)
    assert "is not an http(s) URL" in str(refused.value)
    assert PolicyConfig.model_validate(raw, context=STORED).engines


@pytest.mark.parametrize(
    "urls",
    [
        ["http://h:1", "http://h:1/"],
        ["http://h:1", "http://g:1", "http://H:1"],
        ["http://localhost:1", "http://127.0.0.1:1"],
        ["http://h", "http://h:80"],
        ["https://h:443/v1", "https://h/v1/"],
    ],
)
def test_one_address_that_is_listed_twice_is_refused_and_spared_where_it_was_stored(urls) -> None:
    with pytest.raises(ValidationError, match="one engine is listed"):
        PolicyConfig.model_validate({"engines": urls})
    assert len(PolicyConfig.model_validate({"engines": urls}, context=STORED).engines) == len(urls)


def test_addresses_that_differ_are_taken() -> None:
    free = "http://127.0.0.1:0"
    for urls in (
        ["http://h:1", "http://h:2"],
        ["http://h:1/a", "http://h:1/b"],
        ["http://h", "https://h"],
        [free, free],
    ):
        assert PolicyConfig.model_validate({"engines": urls}).engines == tuple(urls)


@pytest.mark.parametrize(
    "url", ["http://h:0", "https://h", "http://[::1]:8000/v1", "http://h/a/b/", "http://u:p@h/v1"]
)
def test_an_address_that_can_lead_somewhere_is_taken(url: str) -> None:
    raw = {"model": "none", "api": "openai", "engines": [url]}
    assert PolicyConfig.model_validate(raw).engines == (url.rstrip("/"),)
