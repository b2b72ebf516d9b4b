"""A Python function of your own in the place of a program: what [agent] tells of it.

Pure; it imports nothing of the function's. The gateway needs the profile of a function as it needs
any other's; `infra.functions` is what calls the function.
"""

from collections.abc import Mapping
from typing import Any

from mainspring.config.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.named import is_path
from mainspring.programs.matching import SILENT, Noise

_PATH = "function"
_VARIABLES = "variables"


class FunctionProfile:
    bundle: str | None = None
    noise: Noise = SILENT
    offers_tools = False

    def __init__(self, config: AgentConfig) -> None:
        path = config.options.get(_PATH)
        if not isinstance(path, str) or not is_path(path):
            told = "names no function" if path is None else f"has options.{_PATH} = {path!r}"
            raise ConfigError(
                f'agent.kind = "function" {told}',
                remedy=f'set options.{_PATH} in [agent] to "package.module:name"',
            )
        names = config.options.get(_VARIABLES, [])
        if not isinstance(names, list) or not all(map(str.isidentifier, names)):
            raise ConfigError(
                f"agent.options.{_VARIABLES} is {names!r}",
                remedy='list names of variables of the sandbox nodes, as ["GYM_URL"]',
            )
        self.path = path
        self.variables = tuple(names)
        """Of the node's environment, which the function gets beside the usual ones."""
        self.options: Mapping[str, Any] = {
            name: value for name, value in config.options.items() if name not in (_PATH, _VARIABLES)
        }
        """Those that the function reads itself."""
