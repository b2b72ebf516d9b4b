"""Presets fill what is not given, and model directories are found beside their file."""

import json
from pathlib import Path

import pytest

from mainspring.config.files.reading import check_campaign, load_campaign
from mainspring.errors import ConfigError


def campaign(agent: dict[str, object], **policy: object):
    raw = {"name": "p", "agent": {"preset": "swe-bench", **agent}, "policy": policy}
    return check_campaign(raw, "here")


def test_swe_bench_has_the_limits_of_mini_swe_agent(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 131_072}))
    config = campaign({}, model=str(tmp_path))
    agent = config.agent
    assert (agent.step_limit, agent.command_timeout_s, agent.observation_chars) == (250, 60, 10_000)
    assert agent.max_format_errors == 250 and agent.rollout_timeout_s >= 3600
    assert config.policy.max_context == 131_072
    # Stored as it was expanded, and read again without being changed.
    assert check_campaign(config.model_dump(mode="json"), "stored") == config


def test_what_is_given_wins(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 131_072}))
    config = campaign({"step_limit": 30}, model=str(tmp_path), max_context=4096, max_new_tokens=512)
    assert (config.agent.step_limit, config.agent.command_timeout_s) == (30, 60)
    assert (config.policy.max_context, config.policy.max_new_tokens) == (4096, 512)


def test_a_small_context_leaves_room_for_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    policy = campaign({}, model=str(tmp_path)).policy
    assert (policy.max_context, policy.max_new_tokens) == (2048, 1024)


def test_an_endpoint_has_its_own_context() -> None:
    assert campaign({}, api="openai", model="m").policy.max_context > 1_000_000


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.preset: .*swe-bench"):
        check_campaign({"name": "p", "agent": {"preset": "swebench"}}, "here")


def test_a_model_directory_is_found_beside_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    file = tmp_path / "campaign.toml"
    file.write_text('name = "p"\n[policy]\nmodel = "model"\n')
    monkeypatch.chdir("/")
    assert load_campaign(file).policy.model == str(tmp_path / "model")
    file.write_text('name = "p"\n[policy]\nmodel = "Qwen/Qwen3-8B"\n')
    assert load_campaign(file).policy.model == "Qwen/Qwen3-8B"
