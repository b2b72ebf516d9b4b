"""The example reward scores rollouts: named by its path, through the real code."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mainspring.config.files.reading import load_campaign
from mainspring.rewards.scoring import Outcome, check_parts, score
from mainspring.status import StopReason, Verdict

EXAMPLE = Path(__file__).parents[3] / "examples" / "own-reward"


def test_the_example_reward_scores_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    config = load_campaign(EXAMPLE / "campaign.toml")
    check_parts(config)
    ended = Outcome(
        rollout="r",
        task="t",
        stop_reason=StopReason.SUBMITTED,
        verdict=Verdict.RESOLVED,
        report=None,
        num_turns=3,
        step_limit=4,
        num_format_errors=0,
        num_completion_tokens=20,
        num_tokens=200,
        max_context=512,
        patch=b"+" * 500,
    )
    scored = score(config.reward.parts, ended)
    assert scored.parts == {"outcome": 1.0, "small_patch:small_patch": -0.25}
    assert scored.reward == 1.0 - 0.1 * 0.25
    assert score(config.reward.parts, replace(ended, patch=b"+" * 9000)).reward == 0.9
    sys.modules.pop("small_patch", None)
