"""The model directory that a campaign file names: absolute, or relative to the file.

Invariant: what is stored is absolute where the directory exists, because workers have a working
directory of their own; what does not exist stays as it is written, for the checklist to name.
"""

import os
from pathlib import Path
from typing import Any

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
