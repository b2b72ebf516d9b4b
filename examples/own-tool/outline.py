"""A tool that shows the classes and functions of a Python file, with their lines."""

import shlex
from collections.abc import Mapping
from typing import Any

from mainspring.agents.tools.protocol import Misused
from mainspring.programs.request import ToolSpec


class Outline:
    spec = ToolSpec(
        name="outline",
        description="Show the classes and functions of a Python file with their lines.",
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Path of a file that ends in .py."},
                "inner": {"type": "boolean", "description": "Also those inside of others."},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    )

    def command(self, arguments: Mapping[str, Any]) -> str:
        path = arguments["path"]
        if not path.endswith(".py"):
            raise Misused(f"outline: {path!r} is no Python file")
        indent = "[[:space:]]*" if arguments.get("inner") else ""
        pattern = f"^{indent}(class|def|async def) "
        return f"grep -nE {shlex.quote(pattern)} -- {shlex.quote(path)}"
