"""A client is refused where its context is too small for it, by numbers that were measured.

The measured cases: a client in a sandbox, ten commands of 1,500 tokens each, a policy that counts
at 4 bytes a token and writes summaries. `dies`: it ended by itself with exit code 1, or wrote a
summary after each turn without an end.
"""

import tomllib
from pathlib import Path

import pytest

from mainspring.config.agents.agent import AgentConfig
from mainspring.config.policy import PolicyConfig
from mainspring.errors import ConfigError
from mainspring.programs.profiles.choice import (
    PROFILES,
    check_context,
    context_warning,
    profile_for,
)

PAGE = Path(__file__).parents[3] / "docs" / "agents.md"
FEW = {"tools": ["Bash", "Edit", "Read", "Write"]}
BARE = {"bare": True}
NONE: dict[str, object] = {}
OWN = ("command", "function", "harbor", "remote")
CLIENTS = [kind for kind in PROFILES if kind not in OWN]


def agent(kind: str, options: dict[str, object] | None = None, **fields: object) -> AgentConfig:
    return AgentConfig.model_validate({"kind": kind, "options": options or {}, **fields})


def policy(max_context: int, max_new_tokens: int = 4096) -> PolicyConfig:
    return PolicyConfig(model="m", max_context=max_context, max_new_tokens=max_new_tokens)


@pytest.mark.parametrize(
    ("kind", "options", "max_context", "max_new_tokens"),
    [
        ("claude-code", NONE, 8192, 1024),
        ("claude-code", NONE, 16_384, 2048),
        ("claude-code", NONE, 24_576, 4096),
        ("claude-code", NONE, 32_768, 4096),
        ("claude-code", NONE, 32_768, 2048),
        ("claude-code", FEW, 16_384, 2048),
        ("claude-code", FEW, 22_632, 4096),
        ("claude-code", FEW, 23_632, 4096),
        ("claude-code", BARE, 8192, 1024),
        ("claude-code", BARE, 16_384, 2048),
        ("codex", NONE, 8192, 1024),
        ("codex", NONE, 10_240, 1024),
        ("opencode", NONE, 8192, 1024),
        ("opencode", NONE, 10_240, 1024),
        ("qwen-code", NONE, 8192, 1024),
        ("qwen-code", NONE, 16_384, 2048),
        ("gemini-cli", NONE, 8192, 1024),
        ("openhands", NONE, 8192, 1024),
        ("openhands", NONE, 12_288, 1024),
    ],
)
def test_where_a_client_died_it_is_refused(
    kind: str, options: dict[str, object], max_context: int, max_new_tokens: int
) -> None:
    with pytest.raises(ConfigError, match=f"max_context = {max_context} is too small") as refused:
        check_context(agent(kind, options), policy(max_context, max_new_tokens))
    assert f"{kind!r}" in refused.value.message
    assert "raise policy.max_context" in refused.value.remedy
    assert ("tools" in refused.value.remedy) == (kind == "claude-code" and not options)


@pytest.mark.parametrize(
    ("kind", "options", "max_context", "max_new_tokens"),
    [
        ("claude-code", NONE, 40_960, 4096),
        ("claude-code", NONE, 60_000, 32_000),
        ("claude-code", FEW, 24_592, 4096),
        ("claude-code", FEW, 32_768, 4096),
        ("claude-code", FEW, 60_000, 32_000),
        ("claude-code", BARE, 24_576, 4096),
        ("codex", NONE, 16_384, 2048),
        ("codex", NONE, 24_576, 4096),
        ("opencode", NONE, 16_384, 2048),
        ("gemini-cli", NONE, 16_384, 2048),
        ("qwen-code", NONE, 24_576, 4096),
        ("openhands", NONE, 16_384, 2048),
        ("openhands", NONE, 24_576, 4096),
        ("mini-swe-agent", NONE, 4096, 4000),
        ("langgraph", NONE, 2048, 1024),
    ],
)
def test_where_a_client_worked_it_may(
    kind: str, options: dict[str, object], max_context: int, max_new_tokens: int
) -> None:
    check_context(agent(kind, options), policy(max_context, max_new_tokens))


def test_little_room_is_told() -> None:
    told, remedy = context_warning(agent("codex"), policy(16_384, 2048)) or ("", "")
    assert "after about 6102 tokens of work" in told and "raise policy.max_context" in remedy
    assert context_warning(agent("codex"), policy(32_768)) is None
    told, _ = context_warning(agent("gemini-cli"), policy(15_000)) or ("", "")
    assert "its context is full after about 2600 tokens" in told
    assert context_warning(agent("claude-code", FEW), policy(32_768)) is None


@pytest.mark.parametrize(
    "changed",
    [
        agent("codex", {"config": ["model_instructions_file='/tmp/short'"]}),
        agent("codex", version="0.170.0"),
    ],
)
def test_a_prompt_that_was_not_measured_is_only_told(changed: AgentConfig) -> None:
    check_context(changed, policy(8192, 1024))
    told, _ = context_warning(changed, policy(8192, 1024)) or ("", "")
    assert "unless its options shorten its prompt" in told


@pytest.mark.parametrize("kind", ["bash", "bundled", "no-such-agent"])
def test_an_agent_that_is_no_program_takes_any_context(kind: str) -> None:
    check_context(agent(kind), policy(64, 1))
    assert context_warning(agent(kind), policy(64, 1)) is None


@pytest.mark.parametrize(
    "own",
    [
        agent("command", {"command": "true"}),
        agent("function", {"function": "a.b:c"}),
        agent("langgraph", {"script": "/opt/agent.py"}),
        agent("remote"),
    ],
)
def test_of_your_own_nothing_is_known(own: AgentConfig) -> None:
    check_context(own, policy(64, 1))
    assert context_warning(own, policy(64, 1)) is None


def test_harbor_starts_the_same_client() -> None:
    with pytest.raises(ConfigError, match="too small for 'claude-code'"):
        check_context(agent("harbor", {"agent": "claude-code"}), policy(32_768))
    check_context(agent("harbor", {"agent": "claude-code"}), policy(65_536))
    check_context(agent("harbor", {"agent": "terminus-2"}), policy(2048, 512))


@pytest.mark.parametrize("kind", CLIENTS)
def test_the_example_of_an_endpoint_has_room_for_every_client(kind: str) -> None:
    example = tomllib.loads((PAGE.parents[1] / "examples" / "endpoint" / "eval.toml").read_text())
    given = PolicyConfig.model_validate({"model": "m", **example["policy"]})
    check_context(agent(kind), given)
    assert context_warning(agent(kind), given) is None


def test_the_page_has_the_smallest_contexts() -> None:
    page = PAGE.read_text()
    cases = [(kind, f"`{kind}`", NONE) for kind in CLIENTS]
    cases += [("claude-code", "`claude-code`, these four tools", FEW)]
    cases += [("claude-code", "`claude-code`, `bare`", BARE)]
    for kind, name, options in cases:
        need = profile_for(agent(kind, options)).context_need
        assert need is not None, kind
        then = "a summary" if need.compacts else "ends: context full"
        row = f"| {name} | {need.first_prompt:,} | {need.smallest(4096):,} | {then} |"
        assert row in page, row
