"""The tool of environments that take actions as text, and not commands of a shell. Pure."""

from collections.abc import Mapping
from typing import Any

from mainspring.agents.tools.protocol import text_in
from mainspring.programs.request import ToolSpec

ACT = "act"


class ActTool:
    spec = ToolSpec(
        name=ACT,
        description="Take one action in the environment.",
        parameters={
            "type": "object",
            "properties": {
                "action": {"type": "string", "minLength": 1, "description": "The action."}
            },
            "required": ["action"],
            "additionalProperties": False,
        },
    )

    def command(self, arguments: Mapping[str, Any]) -> str:
        return text_in(self.spec, arguments)
