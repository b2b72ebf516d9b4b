"""Installed clients, played in a sandbox through model port and gateway, with a scripted policy."""

import dataclasses
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from scripted_answers import KEY, Script, calling, serving

from gateway.protocol import Session
from gateway.server import Address
from infra.bundles.store import BundleMissing, mounts_for
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import Limits, SandboxSpec
from mainspring.config.agents.agent import AgentConfig
from mainspring.environments.protocol import CommandResult
from mainspring.ids import SandboxId
from mainspring.programs.kinds import kind_of
from mainspring.programs.matching import Noise, key_of
from mainspring.programs.profile import Ask
from mainspring.programs.profiles.choice import profile_for
from mainspring.programs.record import BranchKind
from mainspring.programs.reply import Answer, Reply
from mainspring.programs.request import ModelRequest, Role, ToolSpec
from mainspring.programs.starting import script

WORKDIR = "/testbed"
FILES = {"pkg/calc.py": "def add(a, b):\n    return a - b\n", "pkg/__init__.py": ""}
INSTRUCTION = "add(1, 2) must be 3.\nQuotes ' \" ` $(touch /tmp/fooled) and a % do no harm."
FIX = "sed -i 's/a - b/a + b/' pkg/calc.py"
TEST = "python3 -c 'from pkg.calc import add; assert add(1, 2) == 3; print(\"passed\", 6 * 7)'"
SHELLS = (
    *("bash", "Bash", "exec_command", "shell", "shell_command", "run_shell_command"),
    "terminal",
)
EDIT = """pkg/calc.py
<<<<<<< SEARCH
    return a - b
=======
    return a + b
>>>>>>> REPLACE
"""
LIMITS = Limits(memory_mb=8192, max_pids=512, cpus=2.0)


class Policy(Script):
    """Edits, runs the test, finishes."""

    async def ask(self, session: Session, request: ModelRequest, *, is_retry: bool) -> Answer:
        self.default = self.reply(request)
        return await super().ask(session, request, is_retry=is_retry)

    def reply(self, request: ModelRequest) -> Reply:
        return usual_reply(request)

    def kinds(self) -> list[BranchKind]:
        """Of the requests of a client that offers tools."""
        return [kind_of(request, offers_tools=True) for _, request, _ in self.asked]

    @property
    def seen(self) -> str:
        return "\n".join(
            message.text for _, request, _ in self.asked for message in request.messages
        )


def usual_reply(request: ModelRequest) -> Reply:
    tool = shell_of(request)
    if tool is None:
        is_aider = any("SEARCH" in message.text for message in request.messages)
        return Reply(text=EDIT if is_aider else "Fix add")
    num_results = sum(message.role is Role.TOOL for message in request.messages)
    is_mini = "COMPLETE_TASK" in "".join(message.text for message in request.messages)
    last = ["echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"] if is_mini else []
    commands = [FIX, TEST, *last]
    if num_results < len(commands):
        return calling(tool.name, json.dumps(arguments(tool, commands[num_results])))
    return Reply(text="Fixed.")


def shell_of(request: ModelRequest) -> ToolSpec | None:
    return next((tool for tool in request.tools if tool.name in SHELLS), None)


def arguments(tool: ToolSpec, command: str) -> dict[str, Any]:
    known: Mapping[str, Any] = {
        "command": ["bash", "-c", command] if tool.name == "shell" else command,
        "cmd": command,
        "description": "Run it",
        "is_background": False,
        "security_risk": "LOW",
        "summary": "Run it",
    }
    wanted = tool.parameters.get("required") or ["command"]
    return {name: known[name] for name in wanted if name in known}


class Between(Protocol):
    """What stands between model port and gateway: where the port is to lead."""

    def __call__(self, gateway: Address) -> AbstractAsyncContextManager[Address]: ...


@dataclass(frozen=True, slots=True)
class Played:
    ended: CommandResult
    patch: bytes
    policy: Policy
    was_fooled: bool

    def keys(self, noise: Noise) -> list[str]:
        return sorted(key_of(request, noise) for _, request, _ in self.policy.asked)


async def played(
    backend: BwrapBackend,
    agent: AgentConfig,
    life: int = 1,
    policy: Policy | None = None,
    between: Between = nullcontext,
) -> Played:
    try:
        mounts = mounts_for(agent)
    except BundleMissing as missing:
        pytest.skip(missing.message)
    ask = Ask(INSTRUCTION, WORKDIR, max_context=32_768, max_new_tokens=4096)
    launch = profile_for(agent).launch(ask)
    policy = policy or Policy()
    spec = SandboxSpec(SandboxId(f"client.{life}"), WORKDIR, files=FILES, limits=LIMITS)
    sandbox = await backend.open(dataclasses.replace(spec, mounts=mounts))
    async with serving(policy) as gateway, between(gateway) as address:
        await sandbox.open_model_port(lambda: [f"{address.host}:{address.port}"], KEY)
        ended = await sandbox.run("agent.1", script(launch), 500)
        await sandbox.stop("agent.1")
        patch = await sandbox.diff()
        was_fooled = (await sandbox.run("look", "ls /tmp/fooled", 60)).returncode == 0
        await sandbox.close()
    return Played(ended, patch, policy, was_fooled)
