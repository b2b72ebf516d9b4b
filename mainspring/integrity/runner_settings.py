"""Steering of pytest by a repository's settings, read from text that anybody may write. Pure.

Invariant: two texts with equal steering run the same tests in the same way, as far as settings
decide it. Imported by grading, which compares a settings file before and after a patch.
"""

import configparser
import tomllib
from pathlib import PurePosixPath

FILES = frozenset({"pyproject.toml", "setup.cfg", "tox.ini"})
"""Settings of programs that hold pytest's as well. Files of pytest alone are tests
(`mainspring.tasks.patches`)."""
STEERING = frozenset(
    {
        *("addopts", "testpaths", "python_files", "python_classes", "python_functions"),
        *("norecursedirs", "collect_imported_tests", "pythonpath", "usefixtures", "env"),
        *("required_plugins", "minversion", "confcutdir", "empty_parameter_set_mark"),
    }
)
"""Which tests run, with which plugins, and what is loaded first. Markers, warnings and logs are
not among them: honest fixes change those."""
Steering = tuple[tuple[str, str], ...]


def has_settings(path: str) -> bool:
    return PurePosixPath(path).name in FILES


def steering(path: str, text: str) -> Steering:
    """Empty for what no program can read: pytest would refuse it."""
    if PurePosixPath(path).suffix == ".toml":
        return _of_toml(text)
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return ()
    values: dict[str, str] = {}
    for section in ("tool:pytest", "pytest"):
        if parser.has_section(section):
            values |= {key: value for key, value in parser.items(section) if key in STEERING}
    entries = "options.entry_points"
    if parser.has_option(entries, "pytest11"):
        values["pytest11"] = parser.get(entries, "pytest11")
    return tuple(sorted(values.items()))


def _of_toml(text: str) -> Steering:
    try:
        settings = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return ()
    pytest = _table(_table(settings, "tool"), "pytest")
    values = {**pytest, **_table(pytest, "ini_options")}
    values = {key: str(value) for key, value in values.items() if key in STEERING}
    plugins = _table(_table(_table(settings, "project"), "entry-points"), "pytest11")
    poetry = _table(_table(_table(_table(settings, "tool"), "poetry"), "plugins"), "pytest11")
    if plugins or poetry:
        values["pytest11"] = str([sorted(plugins.items()), sorted(poetry.items())])
    return tuple(sorted(values.items()))


def _table(parent: dict[str, object], name: str) -> dict[str, object]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}
