"""Where the values of a configuration come from: files that extend files, variables of the
environment, and `--set` on the command line.

Invariants: what is nearer to the command line wins: `--set`, then variables, then the file, then
the files that it extends, the last one first. Tables are merged, everything else is replaced whole.
A path counts from the file that it stands in, else from the working directory. Imported by
`reading` and by commands.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from pathlib import Path
from typing import Any

from mainspring.errors import ConfigError

Table = dict[str, Any]
PREFIX = "MAINSPRING__"
"""Beginning of the variables that set a field: MAINSPRING__AGENT__STEP_LIMIT."""
EXTENDS = "extends"
SET = "--set"
UNSET = "unset"
"""Value of a field that is to have none."""
_INDEX = re.compile(r"\d+")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WHOLE = (("agent", "prompts"),)
"""Tables that are not merged with one that names a file of its own."""
_LIST_OR_TABLE = (("tasks",),)
"""Sections that a file may have as a table or as a list of tables."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values that stand above files."""

    given: tuple[str, ...] = ()
    """Those of the command line, as "a.b.c=value"."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment; others than those of PREFIX are passed over."""


NONE = Overrides()


@dataclass(slots=True)
class Layered:
    table: Table = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """By dotted field: the file, the variable, or "--set"."""

    def add(self, table: Table, origin: str) -> None:
        """Above all that is there."""
        self.table = _merged(self.table, table, (), origin)
        for path in _leaves(table):
            self._note(path, origin)

    def put(self, path: tuple[str, ...], value: Any, origin: str, told: str) -> None:
        """One value; a number in `path` is the place in a list. Raises ConfigError."""
        at: Any = self.table
        for place, name in enumerate(path):
            so_far, is_last = ".".join(path[:place]), place + 1 == len(path)
            if isinstance(at, list):
                at = _entry(at, name, so_far, told, value if is_last else None)
            elif is_last:
                at[name] = value
            else:
                # A copy: a table may be shared with what a default was made of.
                inner = at.get(name)
                at[name] = inner if isinstance(inner, list) else dict(_table(inner))
                at = at[name]
        self._note(path, origin)

    def elsewhere(self, file: Path | None) -> dict[str, str]:
        """Origins of the fields, and of the sections, of which the file has nothing."""
        sections: dict[str, set[str]] = {}
        for name, origin in self.origins.items():
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                sections.setdefault(".".join(parts[:length]), set()).add(origin)
        return {
            name: ", ".join(sorted(origins))
            for name, origins in sections.items()
            if str(file) not in origins
        }

    def _note(self, path: tuple[str, ...], origin: str) -> None:
        dotted = ".".join(path)
        for below in [each for each in self.origins if each.startswith(f"{dotted}.")]:
            del self.origins[below]
        self.origins[dotted] = origin


def layered(
    file: Path | None,
    overrides: Overrides,
    read: Callable[[Path], Table],
    placed: Callable[[Table, Path], Table],
) -> Layered:
    """The table of a file with all that stands below and above it. `read` gives the table of one
    TOML file; `placed` makes its paths absolute, given the file. Raises ConfigError."""
    found = Layered()
    if file is not None:
        for path, table in _files(file, read, ()):
            found.add(placed(table, path), str(path))
    here = Path.cwd() / "command line"
    for name, value in sorted(overrides.variables.items()):
        if name.startswith(PREFIX):
            keys = tuple(name.removeprefix(PREFIX).split("__"))
            if not all(keys):
                raise ConfigError(
                    f"variable {name} names no field",
                    remedy=f"write it as {PREFIX}AGENT__STEP_LIMIT",
                )
            _put(found, _as_written(found.table, keys), value, name, name, here, placed)
    for text in overrides.given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(
                f"{SET} {text!r} has no value", remedy=f"write it as {SET} agent.step_limit=30"
            )
        _put(
            found,
            keys_of(name, f"{SET} {name}: "),
            value,
            SET,
            f"{SET} {name.strip()}",
            here,
            placed,
        )
    return found


def assignments(texts: Sequence[str]) -> list[tuple[tuple[str, ...], Any]]:
    """The parts of the name and the value of each "a.b.c=value"; the word `unset` gives None.
    Raises ConfigError."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(
                f"{text!r} has no value", remedy="write it as trainer.optimizer.lr=5e-7"
            )
        value = value.strip()
        found.append((keys_of(name), None if value == UNSET else _value(value)))
    return found


def _files(
    file: Path, read: Callable[[Path], Table], above: tuple[Path, ...]
) -> Iterator[tuple[Path, Table]]:
    """A file after those that it extends."""
    if file.absolute() in above:
        names = " > ".join(str(path) for path in (*above, file.absolute()))
        raise ConfigError(f"{file} extends itself: {names}", remedy="take one of these out")
    table = read(file)
    bases = table.pop(EXTENDS, [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(
            f"{file}: {EXTENDS}: must be the name of a file, or a list of them",
            remedy=f'write {EXTENDS} = "base.toml": it counts from the folder of this file',
        )
    for base in bases:
        if not (file.parent / base).is_file():
            raise ConfigError(
                f"{file}: {EXTENDS}: there is no file {base!r}",
                remedy="its name counts from the folder of this file",
            )
        yield from _files(file.parent / base, read, (*above, file.absolute()))
    yield file, table


def _put(
    found: Layered,
    path: tuple[str, ...],
    text: str,
    origin: str,
    told: str,
    here: Path,
    placed: Callable[[Table, Path], Table],
) -> None:
    if path[0] == EXTENDS:
        raise ConfigError(
            f"{told}: only a file extends another one", remedy=f"write {EXTENDS} into the file"
        )
    value = _value(text)
    if any(map(_INDEX.fullmatch, path)):
        return found.put(path, value, origin, told)
    table: Table = {path[-1]: value}
    for name in reversed(path[:-1]):
        table = {name: table}
    found.add(placed(table, here), origin)


def name_of(keys: Sequence[str]) -> str:
    """The dotted name of which these are the parts, as TOML has it."""
    return ".".join(key if _BARE.fullmatch(key) else json.dumps(key) for key in keys)


def keys_of(name: str, told: str = "") -> tuple[str, ...]:
    """The parts of a dotted name, as TOML has it. `told`: what a message begins with."""
    try:
        table: Any = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        raise ConfigError(
            f"{told}{name.strip()!r} names no field",
            remedy="write it as section.field: agent.step_limit, reward.parts.0.weight",
        ) from None
    keys: list[str] = []
    while isinstance(table, dict):
        [(key, table)] = table.items()
        keys.append(key)
    return tuple(keys)


def _value(text: str) -> Any:
    """A value of TOML; anything else is the text itself, so that a word needs no quotes."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = table.get("value")
    # A name may look like a date, and a text that holds a line is no single value.
    return text if isinstance(value, date | time) or len(table) > 1 else value


def _as_written(table: Table, keys: tuple[str, ...]) -> tuple[str, ...]:
    """A variable's names as the file has them, else in small letters: a variable has capitals
    only."""
    at: Any = table
    names: list[str] = []
    for key in keys:
        inside = at if isinstance(at, dict) else {}
        same = [name for name in inside if name.lower() == key.lower()]
        names.append(same[0] if len(same) == 1 else key.lower())
        at = inside.get(names[-1])
    return tuple(names)


def _entry(at: list[Any], name: str, where: str, told: str, value: Any) -> Any:
    """The entry of a list, a copy of it in its place; with a value, that in its place."""
    if not _INDEX.fullmatch(name):
        raise ConfigError(
            f"{told}: {where} is a list, and {name!r} is no place in it",
            remedy=f"name one by its number from 0: {where}.0.{name}",
        )
    place = int(name)
    if place >= len(at):
        has = f"{len(at)} entries" if len(at) != 1 else "1 entry"
        raise ConfigError(
            f"{told}: {where} has {has}, counted from 0, and no number {place}",
            remedy="add it to the file, or set the whole list",
        )
    at[place] = value if value is not None else dict(_table(at[place]))
    return at[place]


def _table(value: Any) -> Table:
    return value if isinstance(value, dict) else {}


def _merged(below: Table, above: Table, path: tuple[str, ...], origin: str) -> Table:
    if path in _WHOLE and "file" in above:
        return above
    merged = dict(below)
    for name, value in above.items():
        under = below.get(name)
        if isinstance(value, dict) and isinstance(under, dict):
            merged[name] = _merged(under, value, (*path, name), origin)
        elif (*path, name) in _LIST_OR_TABLE and _differ(under, value):
            told = ".".join((*path, name))
            here, there = (
                f"[[{told}]]" if isinstance(each, list) else f"[{told}]" for each in (value, under)
            )
            raise ConfigError(
                f"{origin}: {here} cannot stand above {there}: it would replace all of it",
                remedy=f"write the same form in both; one entry of a list has its number, as in "
                f"{told}.0.source",
            )
        else:
            merged[name] = value
    return merged


def _differ(under: Any, value: Any) -> bool:
    """Whether one is a table and the other a list of tables."""
    return {type(under), type(value)} == {dict, list}


def _leaves(table: Table, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)
