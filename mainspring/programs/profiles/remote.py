"""An agent that runs elsewhere: it takes a session of the gateway and hands in what it made.

Invariant: nothing is started for it, and no sandbox is opened but the one that grades its patch.
"""

import re

from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.programs.context_need import ContextNeed
from mainspring.programs.matching import Noise
from mainspring.programs.profile import Ask, Launch

REMOTE = "remote"
"""The kind."""
SILENCE_S = 900.0
LIVES = 3
_OPTIONS = ("rewards", "silence_s", "lives", "tools", "noise")


class RemoteProfile:
    bundle: str | None = None
    context_need: ContextNeed | None = None

    def __init__(self, config: AgentConfig) -> None:
        options = config.options
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise ConfigError(
                f"agent.options of {REMOTE!r} has no {', '.join(unknown)}",
                remedy=f"its options are {', '.join(_OPTIONS)}",
            )
        self.takes_rewards = _flag(options.get("rewards", False), "rewards")
        """Whether an agent may hand in a reward in the place of a patch."""
        self.offers_tools = _flag(options.get("tools", False), "tools")
        self.silence_s = _number(options.get("silence_s", SILENCE_S), "silence_s", 1.0)
        self.lives = int(_number(options.get("lives", LIVES), "lives", 1))
        """Sessions in a row that may bring nothing new."""
        self.noise = Noise(_patterns(options.get("noise", [])))

    def launch(self, ask: Ask) -> Launch:
        """Raises ConfigError."""
        raise ConfigError(
            f"agent.kind = {REMOTE!r} is an agent that runs elsewhere: no sandbox starts it",
            remedy="start your agent where it runs: it takes a session of the gateway by itself",
        )


def _flag(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(name, value, "true or false")


def _number(value: object, name: str, least: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= least:
        return float(value)
    raise _wrong(name, value, f"a number of {least:g} or more")


def _patterns(value: object) -> tuple[str, ...]:
    patterns = tuple(value) if isinstance(value, list) else (str(value),)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise _wrong("noise", pattern, f"a regular expression ({error})") from None
    return patterns


def _wrong(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(
        f"agent.options.{name} of {REMOTE!r} is {value!r}, expected {expected}",
        remedy="correct it in [agent.options]",
    )
