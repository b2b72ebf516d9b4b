"""Rollouts that agents of Harbor play, and the replies of a policy that fixes the bug."""

import json
from typing import Any

import pytest
from function_rollouts import EXAMPLE
from program_checks import EDIT

from infra.bundles.store import BundleMissing, mounts_for
from infra.harbor.installation import require
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.sandbox import SandboxConfig
from mainspring.errors import ConfigError

SOLVER = EXAMPLE.parent / "harbor-agent"
ROOMY = SandboxConfig(memory_mb=8192, max_pids=512)
"""Clients in JavaScript reserve much memory."""
MAX_CONTEXT = 400_000
"""The tests' tokenizer makes many tokens of a client's long prompts."""
SHELLS = {
    "mini-swe-agent": ("bash", "command", {}),
    "claude-code": ("Bash", "command", {}),
    "codex": ("exec_command", "cmd", {}),
    "opencode": ("bash", "command", {"description": "Run it"}),
    "qwen-coder": ("run_shell_command", "command", {"is_background": False}),
    "gemini-cli": ("run_shell_command", "command", {}),
}
"""The tool that runs commands, its argument, and what it needs beside."""
LOOK, LAST = "cat calc.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
BLOCKS = (f"```bash\n{LOOK}\n```", f"```bash\n{EDIT}\n```", "It is fixed.")
"""Replies for the example's agent."""


def harbor_or_skip() -> None:
    try:
        require()
    except ConfigError as lacking:
        pytest.skip(lacking.message)


def agent(name: str, **options: Any) -> dict[str, Any]:
    """Fields of [agent]."""
    parser = "hermes" if name in SHELLS or "bundle" in options else "none"
    return {"kind": "harbor", "tool_parser": parser, "options": {"agent": name, **options}}


def installed(name: str, **options: Any) -> dict[str, Any]:
    fields = agent(name, **options)
    try:
        mounts_for(AgentConfig.model_validate(fields))
    except BundleMissing as missing:
        pytest.skip(missing.message)
    return fields


def fixes_with(client: str, *commands: str):
    """An engine's `say`: these commands with the client's shell, one a reply; then the end."""
    tool, argument, beside = SHELLS[client]
    last = [LAST] if client == "mini-swe-agent" else []
    wanted = [*(commands or (LOOK, EDIT)), *last]

    def say(prompt: str, turn: int) -> str:
        done = prompt.count("<tool_response>")
        if done >= len(wanted):
            return "It is fixed."
        call = {"name": tool, "arguments": {argument: wanted[done], **beside}}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"

    return say
