"""Files and directories that a file of a run names: absolute, or relative to the file.

Invariant: workers have a working directory of their own, so what is stored is absolute: of the
model where the directory exists (what does not exist stays as it is written, for the checklist to
name), and of the commands of services, of the Python of those of verifiers and of files with
trajectories always.
"""

import os
from pathlib import Path
from typing import Any

from mainspring.config.agents.environments import EnvironmentKind
from mainspring.config.section import BUNDLED


def with_model_path(raw: dict[str, Any], file: Path) -> dict[str, Any]:
    """`raw`, read from `file`, with the absolute path of its model directory."""
    policy = raw.get("policy")
    model = policy.get("model") if isinstance(policy, dict) else None
    if not isinstance(policy, dict) or not isinstance(model, str) or policy.get("api") == "openai":
        return raw
    if model == BUNDLED:  # also beside a folder of that name
        return raw
    directory = file.absolute().parent / model
    if not (directory / "config.json").is_file():
        return raw
    return raw | {"policy": policy | {"model": os.path.normpath(directory)}}


def with_service_folders(raw: dict[str, Any], file: Path) -> dict[str, Any]:
    """`raw`, read from `file`, with the absolute path of the folder in which each command of an
    environment starts: the file's own, unless it names one."""
    environments = raw.get("environments")
    if not isinstance(environments, dict):
        return raw
    placed = dict(environments)
    for name, table in environments.items():
        folder = table.get("folder", "") if isinstance(table, dict) else None
        is_started = isinstance(table, dict) and (
            table.get("command") or table.get("kind") == EnvironmentKind.VERIFIERS
        )
        if isinstance(folder, str) and is_started:
            absolute = os.path.normpath(file.absolute().parent / folder)
            placed[name] = table | {"folder": absolute} | _with_python(table, file)
    return raw | {"environments": placed}


def _with_python(table: dict[str, Any], file: Path) -> dict[str, str]:
    python = table.get("python")
    if not isinstance(python, str) or os.sep not in python:  # a name is looked up by the node
        return {}
    return {"python": os.path.normpath(file.absolute().parent / python)}


def with_data_files(raw: dict[str, Any], file: Path) -> dict[str, Any]:
    """`raw`, read from `file`, with the absolute path of each file of [[data.sources]]."""
    data = raw.get("data")
    sources = data.get("sources") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(sources, list):
        return raw
    placed = [
        source | {"file": os.path.normpath(file.absolute().parent / source["file"])}
        if isinstance(source, dict) and isinstance(source.get("file"), str)
        else source
        for source in sources
    ]
    return raw | {"data": data | {"sources": placed}}
