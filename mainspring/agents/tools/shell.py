"""Tools of the shell: run a command, and submit. Pure."""

from collections.abc import Mapping
from typing import Any

from mainspring.agents.bash_block import SUBMIT_SENTINEL
from mainspring.agents.tools.protocol import text_in
from mainspring.programs.request import ToolSpec


class BashTool:
    spec = ToolSpec(
        name="bash",
        description="Run a bash command in the working directory. Each starts in a fresh subshell.",
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1, "description": "The command."}
            },
            "required": ["command"],
            "additionalProperties": False,
        },
    )

    def command(self, arguments: Mapping[str, Any]) -> str:
        return text_in(self.spec, arguments)


class SubmitTool:
    spec = ToolSpec(
        name="submit",
        description="Submit the changes as they are. Nothing can be changed after it.",
        parameters={"type": "object", "properties": {}, "additionalProperties": False},
    )

    def command(self, arguments: Mapping[str, Any]) -> str:
        return f"echo {SUBMIT_SENTINEL}"
