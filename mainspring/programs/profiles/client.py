"""Base of the profiles of known clients: the bundle, the task in a file, a quiet environment.

Pure. Imported by the profiles beside this file.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.programs.context_need import ContextNeed
from mainspring.programs.matching import SILENT, Noise
from mainspring.programs.profile import BUNDLES, Ask, Launch
from mainspring.programs.recipes import recipe_of

PLACE = "/tmp/mainspring-agent"
"""Where a client's files are: its task, its configuration, what it writes."""
TASK = f"{PLACE}/task"
HOME = f'[ -w "$HOME" ] || {{ export HOME={PLACE}/home; mkdir -p "$HOME"; }}'
_LOOPBACK = "localhost,127.0.0.1,::1"
QUIET = {
    "DO_NOT_TRACK": "1",
    # A proxy, whether of the image or of the task's hosts, is not for the model port.
    "NO_PROXY": _LOOPBACK,
    "no_proxy": _LOOPBACK,
    "NO_COLOR": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


class Client:
    """A subclass sets the class variables and has `launch`."""

    name: ClassVar[str]
    """Name of its recipe."""
    options: ClassVar[tuple[str, ...]] = ()
    """Fields that `agent.options` may have."""
    noise: Noise = SILENT
    offers_tools = True
    need: ClassVar[ContextNeed | None] = None
    """With the options that are usual."""
    shaping: ClassVar[tuple[str, ...]] = ()
    """Options that make its first prompt another one, longer or shorter."""

    def __init__(self, config: AgentConfig) -> None:
        unknown = sorted(set(config.options) - set(self.options))
        if unknown:
            listed = ", ".join(self.options)
            raise ConfigError(
                f"agent.options of {self.name!r} has no {', '.join(unknown)}",
                remedy=f"its options are {listed}" if listed else "it takes none",
            )
        self._options = config.options
        recipe = recipe_of(self.name)
        self.bundle: str | None = recipe.at(config.version).bundle
        self._is_measured = self.bundle == recipe.bundle and not set(config.options) & set(
            self.shaping
        )

    @property
    def context_need(self) -> ContextNeed | None:
        return self.need and replace(self.need, is_measured=self._is_measured)

    def program(self, name: str) -> str:
        return f"{BUNDLES}/{self.bundle}/bin/{name}"

    def words(self, option: str) -> list[str]:
        """An option that is one word or several."""
        value = self._options.get(option, [])
        return [str(word) for word in value] if isinstance(value, list) else [str(value)]

    def flag(self, option: str) -> bool:
        value = self._options.get(option, False)
        if not isinstance(value, bool):
            raise ConfigError(
                f"agent.options.{option} of {self.name!r} is {value!r}",
                remedy="write true or false",
            )
        return value

    def start(
        self,
        ask: Ask,
        command: Sequence[str],
        environment: Mapping[str, str],
        files: Mapping[str, str],
        *,
        told_by: str,
        before: Sequence[str] = (),
    ) -> Launch:
        """`command` in words, each quoted here; `told_by`: bash that hands over the task's file."""
        line = " ".join([*map(shlex.quote, command), told_by])
        return Launch(
            command="\n".join([HOME, *before, line]),
            environment={**QUIET, **environment},
            files={TASK: ask.instruction, **files},
        )


BY_INPUT = f"< {TASK}"
BY_ARGUMENT = f'"$(cat {TASK})"'
