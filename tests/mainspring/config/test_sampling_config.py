"""[policy.sampling] and [evaluation.sampling.SPLIT] in files: what is refused, and in which words,
what may be trained, and what an evaluation takes."""

from pathlib import Path
from typing import Any

import pytest

from mainspring.config.any_run import read_run
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.pairs import warnings
from mainspring.config.files.reading import check_campaign, check_evaluation, load_campaign
from mainspring.config.sampling import MAX_STOPS, SamplingConfig
from mainspring.errors import ConfigError
from mainspring.status import CampaignKind

EVERY = {
    "top_p": 0.8,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
    "presence_penalty": -1.5,
    "frequency_penalty": 0.5,
    "stop": ["</answer>"],
    "chat_template_kwargs": {"enable_thinking": False, "more": [1, {"deep": None}]},
}


def campaign(sampling: dict[str, Any], /, **evaluation: Any) -> CampaignConfig:
    policy = {"model": "/models/m", "sampling": sampling}
    return check_campaign({"name": "c", "policy": policy, "evaluation": evaluation}, "file.toml")


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        ("top_p = 0", "top_p: must be greater than 0, not 0"),
        ("top_p = 1.01", "top_p: must be at most 1, not 1.01"),
        ('top_p = "0.9"', "top_p: must be a number, without quotes"),
        ("top_p = nan", "top_p: must be a finite number"),
        ("top_k = -2", "top_k: must be at least -1, not -2"),
        ("top_k = 0", "top_k: must be -1 (all tokens) or at least 1, not 0"),
        ("top_k = true", "top_k: must be a number, not true or false"),
        ("top_k = 2.5", "top_k: must be a whole number, not 2.5"),
        ("min_p = -0.1", "min_p: must be at least 0"),
        ("min_p = 1.1", "min_p: must be at most 1"),
        ("repetition_penalty = 0", "repetition_penalty: must be greater than 0"),
        ("repetition_penalty = 2.1", "repetition_penalty: must be at most 2"),
        ("presence_penalty = -2.1", "presence_penalty: must be at least -2"),
        ("frequency_penalty = 2.1", "frequency_penalty: must be at most 2"),
        ('stop = ["a", ""]', "stop: has an empty text"),
        ('stop = "a"', "stop: must be a list"),
        ("stop = [1]", "stop.0: must be text in quotes"),
        (f"stop = {['a'] * (MAX_STOPS + 1)}", "stop: must have at most 16 entries"),
        ('chat_template_kwargs = "x"', "chat_template_kwargs: must be a table"),
        ("chat_template_kwargs = { since = 2026-01-01 }", "since must be a value that JSON has"),
        ("chat_template_kwargs = { a = [inf] }", "a must be a value that JSON has, not [inf]"),
        ("chat_template_kwargs = { messages = [] }", "messages cannot be set here"),
        ("chat_template_kwargs = { tools = [] }", "tools cannot be set here"),
        (
            "chat_template_kwargs = { add_generation_prompt = false }",
            "add_generation_prompt cannot be set here",
        ),
        ('chat_template_kwargs = { eos_token = "x" }', "eos_token cannot be set here"),
        ("topp = 0.9", "topp: no such field; did you mean top_p?"),
    ],
    ids=lambda each: str(each)[:50],
)
def test_bad_input_is_refused_in_one_sentence(tmp_path: Path, sampling: str, told: str) -> None:
    for section in ("policy.sampling", "evaluation.sampling.heldout"):
        file = tmp_path / "file.toml"
        file.write_text(f'name = "c"\n[policy]\nmodel = "/models/m"\n[{section}]\n{sampling}\n')
        with pytest.raises(ConfigError) as refused:
            load_campaign(file)
        [line] = refused.value.message.splitlines()
        assert line.startswith(f"{file}: {section}.") and told in line


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        ({"top_p": 0.9}, ["policy.sampling.top_p = 0.9: ", "from a cut one"]),
        ({"top_k": 5, "min_p": 0.1}, ["top_k = 5 and policy.sampling.min_p = 0.1: "]),
        ({"repetition_penalty": 1.1}, ["repetition_penalty = 1.1: ", "after the penalty"]),
        ({"presence_penalty": 1}, ["policy.sampling.presence_penalty = 1: "]),
        ({"frequency_penalty": -1}, ["policy.sampling.frequency_penalty = -1: "]),
        ({"top_p": 0.5, "frequency_penalty": 1}, ["top_p = 0.5: ", "frequency_penalty = 1: "]),
    ],
    ids=str,
)
def test_training_refuses_what_log_probs_do_not_tell(
    sampling: dict[str, Any], told: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        campaign(sampling)
    for words in told:
        assert words in refused.value.message
    assert "set it in [evaluation.sampling.SPLIT]" in refused.value.message
    # The same is fine where nothing is trained.
    measured = campaign({}, sampling={"heldout": sampling})
    assert measured.evaluation.sampling_of("heldout", measured.policy.sampling).given == sampling


def test_training_takes_what_changes_no_distribution() -> None:
    kept = {"stop": ["x"], "chat_template_kwargs": {"enable_thinking": False}}
    whole = {"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
    config = campaign(kept | whole | {"presence_penalty": 0, "frequency_penalty": 0.0})
    assert not config.policy.sampling.not_trained()
    assert config.policy.sampling.stops == ("x",)


def test_a_split_has_its_own_over_the_policys() -> None:
    ours = {"stop": ["x"], "chat_template_kwargs": {"enable_thinking": False}}
    config = campaign(
        ours,
        splits=["heldout", "test"],
        sampling={"heldout": {"top_p": 0.9, "stop": [], "temperature": 0.6}},
    )
    evaluation, policy = config.evaluation, config.policy.sampling
    assert evaluation.sampling_of("test", policy) is policy
    own = evaluation.sampling_of("heldout", policy)
    assert own == SamplingConfig(
        top_p=0.9, stop=(), chat_template_kwargs={"enable_thinking": False}
    )
    assert evaluation.temperature_of("heldout", greedy=False) == 0.6
    assert evaluation.temperature_of("heldout", greedy=True) == 0
    assert evaluation.temperature_of("test", greedy=False) == 1
    again = read_run(CampaignKind.TRAIN, config.model_dump(mode="json"))
    assert again == config


def test_a_split_that_is_not_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sampling\.heldot is of no split that is measured"):
        campaign({}, sampling={"heldot": {"top_p": 0.9}})


def test_a_cut_at_temperature_0_is_told() -> None:
    config = campaign({}, sampling={"heldout": {"top_p": 0.9, "temperature": 0}})
    assert any(
        line.startswith("evaluation.sampling.heldout.top_p does nothing at temperature 0")
        for line in warnings(config)
    )
    assert not SamplingConfig(presence_penalty=1.0).idle_at(0)
    assert not SamplingConfig(top_p=0.9).idle_at(None)


@pytest.mark.parametrize("api", ["sglang", "openai"])
def test_an_evaluation_takes_all_of_them(api: str) -> None:
    raw = {"name": "e", "policy": {"api": api, "model": "m", "sampling": EVERY}}
    config = check_evaluation(raw, "file.toml")
    assert config.policy.sampling.given == EVERY | {"stop": ("</answer>",)}
    again = read_run(CampaignKind.EVAL, config.model_dump(mode="json"))
    assert again == config
    with pytest.raises(ConfigError, match="top_p: must be greater than 0"):
        check_evaluation({"name": "e", "policy": {"sampling": {"top_p": 0}}}, "file.toml")


def test_what_an_earlier_version_stored_has_nothing_set() -> None:
    stored = campaign({}).model_dump(mode="json")
    del stored["policy"]["sampling"], stored["evaluation"]["sampling"]
    assert read_run(CampaignKind.TRAIN, stored) == campaign({})
