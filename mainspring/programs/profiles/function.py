"""A Python function of your own in the place of a program: what [agent] tells of it.

Pure; it imports nothing of the function's. The gateway needs the profile of a function as it needs
any other's; `infra.functions` is what calls the function. The profile of Harbor's agents extends
it: they are played by a function of Mainspring's.
"""

from collections.abc import Mapping
from typing import Any

from mainspring.config.agents.agent import AgentConfig
from mainspring.config.registry import is_path
from mainspring.errors import ConfigError
from mainspring.programs.context_need import ContextNeed
from mainspring.programs.matching import SILENT, Noise
from mainspring.programs.profile import Ask

_PATH = "function"
VARIABLES = "variables"


class FunctionProfile:
    bundle: str | None = None
    context_need: ContextNeed | None = None
    noise: Noise = SILENT
    offers_tools = False
    folders: tuple[str, ...] = ()
    """Absolute paths of empty folders that its sandbox has beside the repository."""
    needs_sandbox = False
    """It cannot play tasks without a repository."""
    asks_inside = False
    """A command of it in the sandbox asks the model, so it takes as long as the rollout."""

    def __init__(self, config: AgentConfig) -> None:
        path = config.options.get(_PATH)
        if not isinstance(path, str) or not is_path(path):
            problem = "names no function" if path is None else f"has options.{_PATH} = {path!r}"
            raise ConfigError(
                f'agent.kind = "function" {problem}',
                remedy=f'set options.{_PATH} in [agent] to "package.module:name"',
            )
        self.path = path
        self.variables = variables_in(config)
        """Variables of the node's environment, which the function gets beside the usual ones."""
        self._options: Mapping[str, Any] = {
            name: value for name, value in config.options.items() if name not in (_PATH, VARIABLES)
        }

    @property
    def title(self) -> str:
        """For messages."""
        return f"function {self.path!r}"

    def options_for(self, ask: Ask) -> dict[str, Any]:
        """Value that the function gets as `options`."""
        return dict(self._options)


def variables_in(config: AgentConfig) -> tuple[str, ...]:
    """Raises ConfigError."""
    names = config.options.get(VARIABLES, [])
    if not isinstance(names, list) or not all(map(str.isidentifier, names)):
        raise ConfigError(
            f"agent.options.{VARIABLES} is {names!r}",
            remedy='list names of variables of the sandbox nodes, as ["GYM_URL"]',
        )
    return tuple(names)
