"""Agents of Harbor, before any process and without Harbor: which can play, and what they get."""

import subprocess
from typing import Any

import pytest

from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.errors import ConfigError
from mainspring.extensions import ProcessRole, extensions_of
from mainspring.programs.harbor import CLIENTS, OUTSIDE, HarborStart, Inside
from mainspring.programs.profile import BUNDLES, KEY, MODEL_URL, Ask
from mainspring.programs.profiles.choice import folders_of, is_program, profile_for
from mainspring.programs.profiles.harbor import HarborProfile
from mainspring.programs.recipes import recipe_of

ASK = Ask("Fix it.", "/testbed", max_context=10_000, max_new_tokens=1_000)


def config_of(version: str | None = None, **options: Any) -> AgentConfig:
    return AgentConfig(kind="harbor", version=version, options=options)


def profile_of(version: str | None = None, **options: Any) -> HarborProfile:
    profile = profile_for(config_of(version, **options))
    assert isinstance(profile, HarborProfile)
    return profile


def inside_of(start: HarborStart) -> Inside:
    assert start.inside is not None
    return start.inside


@pytest.mark.parametrize("agent", CLIENTS)
def test_an_installed_agent_finds_its_bundle_and_the_model_port(agent: str) -> None:
    recipe = recipe_of(CLIENTS[agent].bundle)
    profile, own = profile_of(agent=agent), profile_for(AgentConfig(kind=recipe.name))
    assert profile.bundle == recipe.bundle and profile.asks_inside
    assert (profile.noise, profile.offers_tools) == (own.noise, own.offers_tools)
    inside = inside_of(profile.start(ASK))
    told = str(inside.environment) + str(inside.arguments) + str(inside.files)
    assert MODEL_URL in told and KEY in told
    assert inside.programs == tuple(CLIENTS[agent].programs)
    for name, program in CLIENTS[agent].programs.items():
        assert f"{BUNDLES}/{profile.bundle}/bin/{program}" in inside.prelude
        assert f"/{name}" in inside.prelude and program in recipe.programs
    assert subprocess.run(["bash", "-n", "-c", inside.prelude], check=False).returncode == 0
    assert inside.arguments["version"] == recipe.version and inside.extends == agent
    assert profile.start(ASK) == HarborStart.model_validate(profile.options_for(ASK))


def test_codex_is_told_its_provider_as_a_table() -> None:
    config = inside_of(profile_of(agent="codex").start(ASK)).arguments["config"]
    provider = config["model_providers"][config["model_provider"]]
    assert provider["base_url"] == f"{MODEL_URL}/v1" and provider["stream_max_retries"] == 100
    assert config["model_context_window"] == 10_000


def test_variables_that_harbor_sets_itself_are_left_to_it() -> None:
    assert "CODEX_HOME" not in inside_of(profile_of(agent="codex").start(ASK)).environment
    environment = inside_of(profile_of(agent="claude-code").start(ASK)).environment
    assert "CLAUDE_CONFIG_DIR" not in environment
    assert environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "1000"


@pytest.mark.parametrize("agent", [*OUTSIDE, "own:Agent"])
def test_others_ask_beside_the_node(agent: str) -> None:
    profile = profile_of(agent=agent, level=3, variables=["GYM_TOKEN"])
    start = profile.start(ASK)
    assert profile.bundle is None and start.inside is None and not profile.asks_inside
    assert start.arguments["level"] == 3 and "variables" not in start.arguments
    assert profile.variables == ("GYM_TOKEN",)


def test_a_class_of_your_own_may_use_a_bundle() -> None:
    profile = profile_of(agent="own:Agent", bundle="codex", version="9.9.9")
    assert profile.bundle == "codex-9.9.9"
    inside = inside_of(profile.start(ASK))
    assert inside.extends == "codex" and inside.arguments["version"] == "9.9.9"
    other = inside_of(profile_of(agent="own:Agent", bundle="openhands").start(ASK))
    assert other.extends is None and other.arguments == {}
    assert other.environment["OPENAI_BASE_URL"] == f"{MODEL_URL}/v1"
    in_image = inside_of(profile_of(agent="own:Agent", in_image=True).start(ASK))
    assert in_image.programs == () and BUNDLES not in in_image.prelude


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "names no agent"),
        ({"agent": 3}, "has options.agent = 3"),
        ({"agent": "goose"}, "'goose' cannot play: Mainspring has no bundle of that name"),
        ({"agent": "no-such-agent"}, "'no-such-agent' cannot play"),
        ({"agent": "codex", "bundle": "codex"}, "bundle is for classes of your own"),
        ({"agent": "terminus-2", "in_image": True}, "in_image is for classes of your own"),
        ({"agent": "own:A", "bundle": "goose"}, "no client is called 'goose'"),
        ({"agent": "own:A", "bundle": "codex", "in_image": True}, "both bundle and in_image"),
        ({"agent": "own:A", "in_image": "yes"}, "in_image is 'yes'"),
        ({"agent": "own:A", "version": "1.2"}, "agent.version is '1.2', and no bundle is used"),
        ({"agent": "codex", "config": "/tmp/x.toml"}, "agent.options.config is set by Mainspring"),
        ({"agent": "own:A", "model_name": "x"}, "agent.options.model_name is set by Mainspring"),
        ({"agent": "own:A", "variables": "GYM_URL"}, "agent.options.variables is 'GYM_URL'"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        profile_of(**options)
    assert refused.value.remedy


def test_its_sandbox_has_the_folders_that_harbor_writes_to() -> None:
    config = config_of(agent="codex")
    assert is_program(config) and "/logs" in folders_of(config)
    assert folders_of(AgentConfig(kind="codex")) == folders_of(AgentConfig()) == ()


@pytest.mark.parametrize("agent", ["codex", "own:Agent"])
def test_nodes_are_asked_whether_they_can_make_it(agent: str) -> None:
    config = CampaignConfig(name="t", agent=config_of(agent=agent), policy=PolicyConfig(model="m"))
    [asked] = extensions_of(config, ProcessRole.NODE)
    assert (asked.what, asked.path) == ("Harbor agent", agent)
    assert extensions_of(config, ProcessRole.ROLLOUT_WORKER) == []
