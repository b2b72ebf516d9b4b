"""Recipes of the bundles of known clients: recipes.toml, read once.

Pure but for that file. Used by profiles, which need a client's version, and by `infra.bundles`.
"""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mainspring.errors import ConfigError

_FILE = Path(__file__).with_name("recipes.toml")
_WORD = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"


class Recipe(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=_WORD)]
    version: Annotated[str, Field(pattern=_WORD)]
    npm: tuple[str, ...] = ()
    """Packages, with their versions."""
    pip: tuple[str, ...] = ()
    programs: Mapping[str, str]
    """Name in the bundle's bin, to what it starts."""
    min_python: str | None = None
    """Version of the Python that the bundle is made with, and brings."""
    max_python: str | None = None
    min_glibc: str | None = None
    """Version of the image's glibc; None: it needs none, or what the bundle's Python needs."""
    version_argument: str = "--version"
    """Argument with which `mainspring agents check` runs it."""

    @property
    def bundle(self) -> str:
        return bundle_name(self.name, self.version)

    def at(self, version: str | None) -> Self:
        """Another version of the same client, made in the same way. Raises ConfigError."""
        if version is None:
            return self
        try:
            return type(self).model_validate({**self.model_dump(), "version": version})
        except ValidationError:
            raise ConfigError(
                f"{version!r} is no version of {self.name}",
                remedy=f"name a released one, as {self.name}@{self.version}",
            ) from None


def bundle_name(name: str, version: str) -> str:
    return f"{name}-{version}"


@functools.cache
def recipes() -> Mapping[str, Recipe]:
    read = tomllib.loads(_FILE.read_text())
    return {name: Recipe(name=name, **fields) for name, fields in read.items()}


def recipe_of(name: str, version: str | None = None) -> Recipe:
    """Raises ConfigError."""
    by_name = recipes()
    if name not in by_name:
        raise ConfigError(
            f"no client is called {name!r}",
            remedy=f'choose from {", ".join(by_name)}, or start your own with kind = "command"',
        )
    return by_name[name].at(version)
