"""The files of prompts that a campaign file names, of agents and judges: read, and put in their
place.

Invariant: what is stored holds the texts themselves, so a run never depends on such a file again; a
field that stands beside `file` overrides it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mainspring.errors import ConfigError

Read = Callable[[Path], dict[str, Any]]


def with_prompts(raw: dict[str, Any], file: Path, read: Read) -> dict[str, Any]:
    """`raw`, read from `file`, with the texts of the files that its agents name. `read` gives the
    table of a TOML file. Raises ConfigError."""
    changed = dict(raw)
    if isinstance(agent := raw.get("agent"), dict):
        changed["agent"] = _filled(agent, "agent", file, read)
    if isinstance(agents := raw.get("agents"), dict):
        changed["agents"] = {
            name: _filled(table, f"agents.{name}", file, read) if isinstance(table, dict) else table
            for name, table in agents.items()
        }
    return changed


def _filled(agent: dict[str, Any], section: str, file: Path, read: Read) -> dict[str, Any]:
    prompts = agent.get("prompts")
    name = prompts.get("file") if isinstance(prompts, dict) else None
    if not isinstance(prompts, dict) or not isinstance(name, str):
        return agent
    path = Path(os.path.normpath(file.absolute().parent / name))
    texts = read(path)
    if "file" in texts:
        raise ConfigError(
            f"{file}: {section}.prompts.file: {path} names a further file",
            remedy="write its texts into one file",
        )
    return agent | {"prompts": texts | prompts | {"file": str(path)}}


def with_judges_prompts(raw: dict[str, Any], file: Path) -> dict[str, Any]:
    """A stored judge depends on no file. Raises ConfigError."""
    judges = raw.get("judges")
    if not isinstance(judges, dict):
        return raw
    return raw | {"judges": {name: _with_prompt(judges[name], name, file) for name in judges}}


def _with_prompt(judge: Any, name: str, file: Path) -> Any:
    given = judge.get("prompt_file") if isinstance(judge, dict) else None
    if not isinstance(given, str) or "prompt" in judge:
        return judge
    where = f"{file}: judges.{name}.prompt_file: {given}"
    try:
        text = (file.absolute().parent / given).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{where} cannot be read: {error.strerror}",
            remedy="give its path, absolute or relative to the campaign file",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where} is no UTF-8 text", remedy="save it as UTF-8") from None
    return {key: value for key, value in judge.items() if key != "prompt_file"} | {"prompt": text}
