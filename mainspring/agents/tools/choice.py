"""The tools that `agent.tools` names: those beside this file, and your own as paths.

Invariant: each of an agent's tools has a name of its own and a schema that is one; others are
refused before a run is stored.
"""

from collections.abc import Callable, Sequence
from functools import cache

from jsonschema import Draft202012Validator, SchemaError

from mainspring.agents.tools.acting import ACT, ActTool
from mainspring.agents.tools.files import EditTool, SearchTool, ViewTool
from mainspring.agents.tools.protocol import Tool
from mainspring.agents.tools.shell import BashTool, SubmitTool
from mainspring.config.registry import Registry
from mainspring.errors import ConfigError, MainspringError
from mainspring.programs.request import ToolSpec

TOOLS: Registry[Callable[[], Tool]] = Registry(
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
    methods=("command",),
)


OF_A_SHELL = frozenset(TOOLS) - {ACT}
"""Those whose commands only a sandbox takes."""


def tools_of(names: Sequence[str]) -> dict[str, Tool]:
    """The tools by the name that the policy calls. Raises ConfigError."""
    tools: dict[str, Tool] = {}
    for name in names:
        tool = _made(name)
        if tool.spec.name in tools:
            raise ConfigError(
                f"agent.tools: two tools are called {tool.spec.name!r}",
                remedy="give each a name of its own",
            )
        tools[tool.spec.name] = tool
    return tools


# Agents are made several times a turn, and to check a schema takes tens of milliseconds.
@cache
def _made(name: str) -> Tool:
    TOOLS.check(name)
    made_of = TOOLS.find(name)
    try:
        tool = made_of()
        spec = tool.spec
        if not isinstance(spec, ToolSpec):
            raise TypeError(f"its spec is a {type(spec).__name__}, expected a ToolSpec")
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
        remedy="a tool is made of nothing, with `spec` and `command`: see docs/built-in-agents.md",
    )
