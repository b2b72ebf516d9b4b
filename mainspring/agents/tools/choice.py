"""The tools that `agent.tools` names: those beside this file, and your own as paths.

Invariant: each of an agent's tools has a name of its own and a schema that is one; others are
refused before a run is stored. A tool either gives commands or runs in Python.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator, SchemaError

from mainspring.agents.tools.acting import ACT, ActTool
from mainspring.agents.tools.files import EditTool, SearchTool, ViewTool
from mainspring.agents.tools.protocol import Tool
from mainspring.agents.tools.python import PYTHON_METHODS, PythonCall, PythonTool
from mainspring.agents.tools.shell import BashTool, SubmitTool
from mainspring.config.registry import Registry
from mainspring.errors import ConfigError, MainspringError
from mainspring.programs.request import ToolSpec


def _does_something(what: str, tool: Any) -> None:
    """Raises ConfigError."""
    gives_commands, runs = (callable(getattr(tool, name, None)) for name in ("command", "execute"))
    if gives_commands == runs:
        raise ConfigError(
            f"{what} {'has both command and' if runs else 'lacks command or'} execute",
            remedy="`command` gives a command for the sandbox, `execute` runs in Python: write one "
            "of them (docs/built-in-agents.md)",
        )
    if runs and (
        wrong := [
            name
            for name in PYTHON_METHODS
            if not inspect.iscoroutinefunction(getattr(tool, name, None))
        ]
    ):
        raise ConfigError(
            f"{what} runs in Python, and its {', '.join(wrong)} is not async",
            remedy=f"write `async def` of {', '.join(PYTHON_METHODS)}: see "
            "mainspring/agents/tools/python.py",
        )


TOOLS: Registry[Callable[[], Tool | PythonTool]] = Registry(
    "tool",
    (
        ("bash", BashTool),
        ("view", ViewTool),
        ("edit", EditTool),
        ("search", SearchTool),
        ("submit", SubmitTool),
        (ACT, ActTool),
    ),
    takes="",
    methods=(),
    require=_does_something,
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names that all call formats and endpoints take."""

OF_A_SHELL = frozenset(TOOLS) - {ACT}
"""Those whose commands only a sandbox takes."""


def tools_of(names: Sequence[str]) -> dict[str, Tool]:
    """The tools by the name that the policy calls. Raises ConfigError."""
    tools: dict[str, Tool] = {}
    for name in names:
        tool = tool_of(name)
        if tool.spec.name in tools:
            raise ConfigError(
                f"agent.tools: two tools are called {tool.spec.name!r}",
                remedy="give each a name of its own",
            )
        tools[tool.spec.name] = PythonCall(tool.spec) if isinstance(tool, PythonTool) else tool
    return tools


def python_tools(names: Sequence[str]) -> dict[str, str]:
    """Those that run in Python: the names that the policy calls, with the paths. Raises
    ConfigError."""
    return {
        tool.spec.name: name
        for name in names
        if name not in TOOLS and isinstance(tool := tool_of(name), PythonTool)
    }


# Agents are made several times a turn, and to check a schema takes tens of milliseconds.
@cache
def tool_of(name: str) -> Tool | PythonTool:
    """The tool of a name or a path. Raises ConfigError."""
    TOOLS.check(name)
    made_of = TOOLS.find(name)
    try:
        tool = made_of()
        spec = tool.spec
        if not isinstance(spec, ToolSpec):
            raise TypeError(f"its spec is a {type(spec).__name__}, expected a ToolSpec")
        if not _NAME.fullmatch(spec.name):
            raise TypeError(f"its name {spec.name!r} is not 1 to 64 of A-Z, a-z, 0-9, _, . and -")
        Draft202012Validator.check_schema(spec.parameters)
        if spec.parameters.get("type") != "object":
            raise TypeError('its schema must have "type": "object"')
        return tool
    except MainspringError:
        raise
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path))
        reason = f"its schema is none: {f'{where}: ' if where else ''}{error.message}"
    except Exception as error:
        reason = f"it cannot be made: {type(error).__name__}: {error}"
    raise ConfigError(
        f"tool {name!r}: {reason}",
        remedy="a tool is made of nothing, with `spec` and `command` or `execute`: see "
        "docs/built-in-agents.md",
    )
