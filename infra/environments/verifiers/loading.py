"""Which form an environment has, and the player for it.

Invariants: an environment that cannot be loaded is Refused, with the words of verifiers or of the
environment; one of the classic form is never taken for one of the present form. Imports the players
when it knows which. Used by `serving`.
"""

import importlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Protocol

from infra.environments.verifiers.world import EpisodeEnd, PlayedWorld, Refused

PRESENT = "verifiers>=0.4,<0.5"
CLASSIC = "verifiers>=0.3.1,<0.4"


class EnvironmentPlayer(Protocol):
    name: str
    worlds: dict[str, PlayedWorld]
    """By the session that a request to the model names."""

    def serving(self) -> AbstractAsyncContextManager[None]:
        """While worlds are played."""
        ...

    async def play(self, number: int, world: PlayedWorld) -> EpisodeEnd:
        """The episode of the task of this number. Raises Refused and EpisodeFailed."""
        ...


def load(environment: str, args: Mapping[str, Any], model_url: str) -> EnvironmentPlayer:
    """Raises Refused."""
    try:
        return _load(environment, args, model_url)
    except Refused:
        raise
    except SystemExit as error:
        raise Refused(f"environment {environment!r} ended the process: {error}") from None
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        raise Refused(f"environment {environment!r} cannot be loaded: {words}") from error


def _load(environment: str, args: Mapping[str, Any], model_url: str) -> EnvironmentPlayer:
    module = environment.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")
    has_classic = find_spec("verifiers.legacy") is not None
    try:
        found = importlib.import_module(module) if find_spec(module) else None
    except Exception as error:
        before = "" if has_classic else f"; one from before verifiers 0.4 needs {CLASSIC!r}"
        words = f"{type(error).__name__}: {error}{before}"
        raise Refused(f"environment {environment!r} cannot be imported: {words}") from error
    if not callable(getattr(found, "load_environment", None)):
        if has_classic:
            raise Refused(
                f"environment {environment!r} is not installed, or has no load_environment, which "
                f"verifiers {version('verifiers')} wants: install it in its Python, or {PRESENT!r} "
                "for one of the present form"
            )
        from infra.environments.verifiers.current import CurrentPlayer

        return CurrentPlayer(environment, args, model_url)
    if not has_classic:
        raise Refused(
            f"environment {environment!r} has load_environment, the form from before verifiers "
            f"0.4: install {CLASSIC!r} in its Python"
        )
    from infra.environments.verifiers.classic import ClassicPlayer

    return ClassicPlayer(environment, args, model_url)
