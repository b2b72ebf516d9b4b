"""What a rollout is worth, what is never scored, and what must stop a campaign."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.config.campaign import CampaignConfig
from mainspring.config.reward import RewardConfig, RewardPart
from mainspring.errors import ConfigError
from mainspring.rewards import scoring
from mainspring.rewards.judges import check_judges
from mainspring.rewards.scoring import Outcome, RewardBroken, Scored, check_parts, score
from mainspring.status import StopReason, Verdict
from mainspring.tasks.criterion import GradeReport

OUTCOME = (RewardPart(name="outcome"),)
ENDED = Outcome(
    rollout="c/g000000/000",
    task="t",
    stop_reason=StopReason.SUBMITTED,
    verdict=Verdict.RESOLVED,
    report=None,
    num_turns=4,
    step_limit=20,
    num_format_errors=1,
    num_completion_tokens=400,
    num_tokens=6000,
    max_context=8000,
    replies=("a", "b", "c", "d"),
    patch=b"x" * 50,
)


def ended(**changes: object) -> Outcome:
    return dataclasses.replace(ENDED, **changes)


def config(*parts: dict[str, object], **sections: object) -> CampaignConfig:
    return CampaignConfig.model_validate(
        {"name": "c", "trainer": {"warm_start": {}}, "reward": {"parts": parts}, **sections}
    )


def value(name: str, outcome: Outcome, **options: float) -> Any:
    return score((RewardPart(name=name, options=options),), outcome).reward


@pytest.mark.parametrize(
    ("stop_reason", "verdict", "reward"),
    [
        (StopReason.SUBMITTED, Verdict.RESOLVED, 1.0),
        (StopReason.STEP_LIMIT, Verdict.RESOLVED, 1.0),
        (StopReason.GIVEN, Verdict.RESOLVED, 1.0),
        (StopReason.SUBMITTED, Verdict.NOT_RESOLVED, -1.0),
        (StopReason.FORMAT_ERRORS, Verdict.NO_PATCH, -1.0),
        (StopReason.SUBMITTED, Verdict.PATCH_FAILED, -1.0),
        (StopReason.SUBMITTED, Verdict.TESTS_TIMED_OUT, -1.0),
        (StopReason.SUBMITTED, Verdict.FAULT, None),
        (StopReason.SUBMITTED, None, None),
        (StopReason.INFRA_FAULT, None, None),
        (StopReason.CANCELLED, Verdict.RESOLVED, None),
        (StopReason.TERMINATED, Verdict.RESOLVED, None),
    ],
)
def test_only_the_agent_is_scored(
    stop_reason: StopReason, verdict: Verdict | None, reward: float | None
) -> None:
    assert value("outcome", ended(stop_reason=stop_reason, verdict=verdict), failed=-1.0) == reward


@given(st.sampled_from(list(StopReason)), st.sampled_from([None, *Verdict]))
def test_what_is_masked_calls_no_part(stop_reason: StopReason, verdict: Verdict | None) -> None:
    outcome = ended(stop_reason=stop_reason, verdict=verdict)
    if outcome.is_masked:
        assert score((RewardPart(name="nowhere:nothing"),), outcome) == Scored(None, {})
    else:
        assert verdict not in (None, Verdict.FAULT)


def test_parts_add_up_with_their_weights_and_are_told_apart() -> None:
    parts = (
        RewardPart(name="outcome", options={"failed": -1.0}),
        RewardPart(name="format", weight=0.2),
        RewardPart(name="length", weight=0.5, options={"free_tokens": 4000.0}),
    )
    scored = score(parts, ENDED)
    assert scored.parts == {"outcome": 1.0, "format": 0.75, "length": -0.5}
    assert scored.reward == pytest.approx(1.0 + 0.15 - 0.25)


def test_tests_that_pass_give_partial_credit() -> None:
    def report(**fields: object) -> Outcome:
        return ended(verdict=Verdict.NOT_RESOLVED, report=GradeReport.model_validate(fields))

    two_of_three = {"fail_to_pass_passed": ("a", "b"), "fail_to_pass_failed": ("c",)}
    assert value("tests_passed", report(**two_of_three)) == pytest.approx(2 / 3)
    assert value("tests_passed", report(**two_of_three, pass_to_pass_failed=("d",))) == 0.0
    assert value("tests_passed", report(score=0.4)) == 0.4
    for score_, share in ((7.0, 1.0), (-7.0, 0.0), (float("nan"), 0.0)):
        assert value("tests_passed", report(score=score_)) == share
    assert value("tests_passed", report(judge="exit_code", returncode=1)) == 0.0
    assert value("tests_passed", ended(report=None)) == 1.0


@given(st.integers(0, 40), st.integers(0, 20_000))
def test_length_falls_from_the_free_number_to_the_limit(num_turns: int, num_tokens: int) -> None:
    outcome = ended(num_turns=num_turns, num_tokens=num_tokens)
    of_turns = value("length", outcome, free_turns=10.0)
    of_tokens = value("length", outcome, free_tokens=4000.0)
    assert of_turns == -min(max(num_turns - 10, 0) / 10, 1)
    assert of_tokens == pytest.approx(-min(max(num_tokens - 4000, 0) / 4000, 1))
    assert value("length", outcome, free_turns=10.0, free_tokens=4000.0) == min(of_turns, of_tokens)


def test_a_length_that_is_not_known_does_not_count() -> None:
    unknown = ended(num_tokens=None, num_completion_tokens=None, num_turns=15)
    both = {"free_tokens": 4000.0, "free_turns": 10.0}
    assert value("length", unknown, **both) == -0.5
    parts = (
        RewardPart(name="outcome"),
        RewardPart(name="length", weight=0.5, options={"free_tokens": 4000.0}),
    )
    assert score(parts, unknown) == Scored(1.0, {"outcome": 1.0, "length": None})
    with pytest.raises(RewardBroken, match="no part that could be measured") as broken:
        score(parts[1:], unknown)
    assert "outcome" in broken.value.remedy


def test_format_is_the_share_of_replies_that_can_be_read() -> None:
    assert value("format", ENDED) == 0.75
    assert value("format", ended(replies=(), num_format_errors=0)) == 1.0


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of somebody's own."""
    (tmp_path / "own_rewards.py").write_text(
        "import numpy\n"
        "small = lambda outcome, *, max_bytes: -len(outcome.patch) / max_bytes\n"
        "def as_numpy(outcome): return numpy.float32(0.5)\n"
        "def divides(outcome): return 1 / 0\n"
        "def says_nothing(outcome): pass\n"
        "def says_nan(outcome): return float('nan')\n"
        "def says_text(outcome): return '1.0'\n"
        "async def waits(outcome): return 1.0\n"
        "NUMBER = 3\n"
    )
    (tmp_path / "broken_rewards.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
def test_a_function_of_ones_own_is_a_part() -> None:
    part = {"name": "own_rewards:small", "weight": 2.0, "options": {"max_bytes": 100.0}}
    parts = config(part, {"name": "own_rewards:as_numpy"}).reward.parts
    check_parts(config(part))
    check_parts(config({"name": "own_rewards:waits"}))
    assert RewardConfig(parts=parts).has_own_functions
    assert not RewardConfig(parts=OUTCOME).has_own_functions
    scored = score(parts, ENDED)
    assert scored.reward == -0.5
    assert scored.parts == {"own_rewards:small": -0.5, "own_rewards:as_numpy": 0.5}
    assert type(scored.parts["own_rewards:as_numpy"]) is float


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_rewards:divides", "raised ZeroDivisionError: division by zero"),
        ("own_rewards:says_nothing", "is None, expected a finite number"),
        ("own_rewards:says_nan", "is nan, expected a finite number"),
        ("own_rewards:says_text", "is '1.0', expected a finite number"),
    ],
)
def test_nonsense_is_neither_a_zero_nor_masked(name: str, says: str) -> None:
    with pytest.raises(RewardBroken) as broken:
        score((*OUTCOME, RewardPart(name=name)), ENDED)
    assert broken.value.message == f"reward part {name!r} of rollout c/g000000/000 {says}"
    assert "every rollout worker" in broken.value.remedy


def test_a_worker_that_lacks_the_function_says_so() -> None:
    with pytest.raises(RewardBroken, match="'gone:gone' cannot be imported: ModuleNotFoundError"):
        score((RewardPart(name="gone:gone"),), ENDED)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"name": "outcomes"}, "no reward part is called 'outcomes'"),
        ({"name": "own_rewards"}, "no reward part is called 'own_rewards'"),
        ({"name": "own_rewards:gone"}, "cannot be imported: AttributeError"),
        ({"name": "broken_rewards:x"}, "No module named 'nothing_of_that_name'"),
        ({"name": "own_rewards:NUMBER"}, "is a int, expected a plain function"),
        ({"name": "own_rewards:small"}, "cannot be called as (outcome, no options): missing"),
        ({"name": "format", "options": {"strict": 1}}, "cannot be called as (outcome, strict)"),
        ({"name": "length"}, "needs an option"),
        ({"name": "length", "options": {"free_turns": 20}}, "free_turns < agent.step_limit 20"),
        ({"name": "outcome"}, "is named twice"),
    ],
)
def test_a_part_that_cannot_be_computed_is_refused_at_the_start(
    part: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_parts(config({"name": "outcome"}, part))
    assert refused.value.message.startswith(f"campaign c: reward.parts[1] {part['name']!r}")
    assert says in refused.value.message


def test_the_examples_of_the_page_can_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    (tmp_path / "my_rewards.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        sections = tomllib.loads(example)
        parts, judges = sections["reward"]["parts"], sections.get("judges", {})
        campaign = config(*parts, judges=judges)
        check_parts(campaign)
        check_judges(campaign)
    check_parts(config({"name": "my_rewards:careful"}))
    for name in scoring.PARTS:
        assert f"| `{name}` |" in page
