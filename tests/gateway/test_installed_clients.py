"""Each client that is installed here fixes a bug in a sandbox, through model port and gateway.

`make agents` installs them. The sandbox has a network of its own with nothing in it; the policy is
a script that calls what each client offers as its shell.
"""

import pytest
from installed_clients import INSTRUCTION, played

from infra.sandbox.bubblewrap.backend import BwrapBackend
from mainspring.config.agents.agent import AgentConfig
from mainspring.programs.profiles.choice import PROFILES, profile_for

CONFIGS = {
    "claude-code short": {"kind": "claude-code", "options": {"tools": ["Bash", "Edit", "Read"]}},
    "aider": {"kind": "aider", "options": {"files": ["pkg/calc.py"]}},
}
KINDS = [kind for kind in PROFILES if kind not in ("command", "function", "harbor", "remote")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*KINDS, "claude-code short"])
async def test_an_installed_client_fixes_the_bug(backend: BwrapBackend, name: str) -> None:
    agent = AgentConfig.model_validate(CONFIGS.get(name, {"kind": name}))
    profile = profile_for(agent)
    first = await played(backend, agent, 1)
    said = first.ended.output.decode(errors="replace")[-3000:]
    assert b"+    return a + b" in first.patch, (name, first.ended.returncode, said)
    assert first.ended.returncode == 0, said
    assert not first.was_fooled
    assert b"mainspring" not in first.patch, first.patch.decode()
    assert first.patch.count(b"diff --git") == 1, first.patch.decode()
    assert INSTRUCTION.splitlines()[1] in first.policy.seen
    if profile.offers_tools:
        assert "passed 42" in first.policy.seen
    # Run again from the start it asks the same, so that it is answered from the record.
    again = await played(backend, agent, 2)
    assert again.patch == first.patch
    assert again.keys(profile.noise) == first.keys(profile.noise)
