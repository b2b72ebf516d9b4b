"""Figures that warn: each at its threshold, and none of an ordinary step."""

from typing import Any

import pytest

from mainspring.config.campaign import CampaignConfig
from mainspring.training.step_metrics import CLIP_NAMES, PASS_NAMES, TAKEN_NAMES
from mainspring.training.watched import WATCHED, warnings

ORDINARY = {
    "num_tokens": 1000.0,
    "num_samples": 24.0,
    "kl": 0.01,
    "ratio_mean": 1.001,
    "clip_fraction": 0.02,
    "entropy": 0.7,
    "grad_norm": 0.4,
    "staleness_mean": 0.5,
    "staleness_3plus": 0.0,
    "logprob_gap_max": 1e-5,
    "mfu": 0.4,
    "value_explained_variance": 0.2,
    "value_clip_fraction": 0.0,
    "correction_cut": 0.0,
    "num_stale_tokens_masked": 100.0,
    "num_overlong_masked": 2.0,
    "logprob_gap_mean": 1e-6,
    "logprob_gap_p999": 1e-5,
    "logprob_gap_k3": 1e-7,
}
BAD = {
    "kl": [0.114],
    "ratio_mean": [0.4, 2.5],
    "clip_fraction": [0.21],
    "entropy": [0.0],
    "grad_norm": [0.0],
    "staleness_mean": [1.01],
    "staleness_3plus": [0.6],
    "logprob_gap_max": [2e-3],
    "mfu": [0.1],
    "value_explained_variance": [-0.1],
    "value_clip_fraction": [0.3],
    "correction_cut": [0.06],
    "num_stale_tokens_masked": [500.0, 1064.0],
    "num_overlong_masked": [24.0],
}


def config(dtype: str = "float32", **trainer: Any) -> CampaignConfig:
    policy = {"model": "/models/m", "dtype": dtype}
    return CampaignConfig.model_validate({"name": "x", "policy": policy, "trainer": trainer})


def test_an_ordinary_step_warns_of_nothing() -> None:
    assert warnings([(1, ORDINARY)], config()) == []
    assert warnings([(1, dict.fromkeys(ORDINARY))], config()) == []
    assert warnings([], config()) == []


@pytest.mark.parametrize("name", list(BAD))
def test_each_figure_warns_beyond_its_threshold(name: str) -> None:
    for value in BAD[name]:
        [told] = warnings([(1, ORDINARY), (2, ORDINARY | {name: value})], config())
        assert told.startswith(f"step 2: {name} is ")
        # Of the newest step alone.
        assert warnings([(1, ORDINARY | {name: value}), (2, ORDINARY)], config()) == []


def test_bounds_of_the_gap_are_those_of_the_campaign() -> None:
    bf16 = config("bfloat16")
    for name, value in (("mean", 0.06), ("p999", 0.6), ("k3", 0.02)):
        [told] = warnings([(1, ORDINARY | {f"logprob_gap_{name}": value})], bf16)
        assert f"logprob_gap_{name}" in told
    assert warnings([(1, ORDINARY | {"logprob_gap_max": 0.3})], bf16) == []


def test_gspo_clips_whole_sequences() -> None:
    assert warnings([(1, ORDINARY | {"clip_fraction": 0.9})], config(loss="gspo")) == []


def test_all_steps_that_trained_nothing_are_named() -> None:
    empty = ORDINARY | {"num_tokens": 0.0, "grad_norm": None}
    steps = [(1, ORDINARY), (2, empty), (3, ORDINARY), (4, empty)]
    assert warnings(steps, config())[0] == "steps 2, 4 of 4 trained nothing: see num_tokens"
    # A critic's warm-up is meant to leave the policy as it is.
    warm_up = empty | {"critic_grad_norm": 0.3, "num_stale_tokens_masked": 0.0}
    warm_up |= {"num_overlong_masked": 0.0}
    assert warnings([(1, warm_up)], config()) == []


def test_every_name_is_a_figure_and_has_a_case_here() -> None:
    names = {each.name for each in WATCHED}
    assert names <= TAKEN_NAMES | {*CLIP_NAMES} | PASS_NAMES
    assert names - BAD.keys() == {
        "num_tokens",
        "logprob_gap_mean",
        "logprob_gap_p999",
        "logprob_gap_k3",
    }
