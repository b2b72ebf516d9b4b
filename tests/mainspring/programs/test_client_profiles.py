"""Profiles are pure: the same section and task give the same launch, and the task stays text."""

import json
import shlex
import subprocess
import tomllib

import pytest

from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.programs.profile import BUNDLES, MODEL_URL, Ask
from mainspring.programs.profiles.choice import PROFILES, profile_for
from mainspring.programs.profiles.client import PLACE, TASK
from mainspring.programs.recipes import recipe_of

CLIENTS = [kind for kind in PROFILES if kind not in ("command", "function", "harbor", "remote")]
EVIL = "$(touch fooled) `x` '\" \\ %s {0}\n--help\n<<'END'\nEND\n"
ASK = Ask(EVIL, "/testbed", max_context=10_000, max_new_tokens=1_000)


def agent(kind: str, **options: object) -> AgentConfig:
    return AgentConfig.model_validate({"kind": kind, "options": options})


@pytest.mark.parametrize("kind", CLIENTS)
def test_the_same_section_gives_the_same_launch(kind: str) -> None:
    launch = profile_for(agent(kind)).launch(ASK)
    assert launch == profile_for(agent(kind)).launch(ASK)
    assert launch.files[TASK] == EVIL
    assert all(path.startswith(f"{PLACE}/") for path in launch.files)
    assert "fooled" not in launch.command
    assert not any("fooled" in value for value in launch.environment.values())
    assert any(MODEL_URL in text for text in (*launch.environment.values(), *launch.files.values()))
    assert subprocess.run(["bash", "-n", "-c", launch.command], check=False).returncode == 0


@pytest.mark.parametrize("kind", CLIENTS)
def test_its_bundle_has_the_program_that_it_starts(kind: str) -> None:
    profile = profile_for(agent(kind))
    assert profile.bundle == recipe_of(kind).bundle
    words = shlex.split(profile.launch(ASK).command.splitlines()[-1])
    programs = {f"{BUNDLES}/{profile.bundle}/bin/{name}" for name in recipe_of(kind).programs}
    assert words[0] in programs
    other = profile_for(AgentConfig(kind=kind, version="1.2.3"))
    assert other.bundle == f"{kind}-1.2.3"


@pytest.mark.parametrize("kind", CLIENTS)
def test_unknown_options_are_refused_by_name(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"agent.options of '{kind}' has no nonsense"):
        profile_for(agent(kind, nonsense=1))


def test_codex_is_told_its_context_and_patience() -> None:
    launch = profile_for(agent("codex", config=["a.b=1", 'c="d e"'])).launch(ASK)
    config = tomllib.loads(launch.files[f"{PLACE}/codex/config.toml"])
    assert config["model_context_window"] == 10_000
    assert config["model_auto_compact_token_limit"] < 9_000
    provider = config["model_providers"][config["model_provider"]]
    assert provider["base_url"] == f"{MODEL_URL}/v1" and provider["request_max_retries"] > 10
    words = shlex.split(launch.command.splitlines()[-1])
    assert [words[place + 1] for place, word in enumerate(words) if word == "-c"] == [
        "a.b=1",
        'c="d e"',
    ]


def test_claude_code_takes_a_short_form() -> None:
    launch = profile_for(agent("claude-code", tools=["Bash", "Edit"], bare=True)).launch(ASK)
    words = shlex.split(launch.command.splitlines()[-1])
    assert "--bare" in words and words[words.index("--tools") + 1] == "Bash,Edit"
    assert launch.environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "1000"
    with pytest.raises(ConfigError, match="write true or false"):
        profile_for(agent("claude-code", bare="yes")).launch(ASK)


def test_opencode_is_told_its_limits() -> None:
    launch = profile_for(agent("opencode")).launch(ASK)
    config = json.loads(launch.files[f"{PLACE}/opencode.json"])
    (model,) = config["provider"]["gateway"]["models"].values()
    assert model["limit"] == {"context": 10_000, "output": 1_000}


def test_noise_is_what_differs_between_two_runs() -> None:
    noise = profile_for(agent("codex")).noise
    once, again = (
        f"Chunk ID: {id}\nWall time: {wall} seconds\nProcess exited with code 0\nOutput:\nhello"
        for id, wall in (("a1b2c3", "0.0513"), ("0f9e8d", "1.25"))
    )
    assert once != again and noise.without(once) == noise.without(again)
    assert "hello" in noise.without(once)
