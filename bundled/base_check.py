"""Whether the bundled model in a directory is whole and of the right seed.

Apart from `bundled.model`, which makes it, so that a trainer that is started again imports no torch
for a model that is there.
"""

import json
from pathlib import Path

from mainspring.artifacts.layout import BASE_IDENTITY
from mainspring.training.training_faults import CheckpointUnusable


def check_base(directory: Path, seed: int) -> None:
    """Raises CheckpointUnusable."""
    try:
        identity = json.loads((directory / BASE_IDENTITY).read_text())
        made_of, sizes = int(identity["seed"]), dict(identity["sizes"])
    except (OSError, ValueError, KeyError, TypeError):
        raise _unusable(directory, "does not tell the seed it was made of") from None
    if made_of != seed:
        raise _unusable(directory, f"was made of seed {made_of}, the campaign has seed {seed}")
    for name, size in sizes.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != size:
            raise _unusable(directory, f"lacks its file {name}, or a part of it")


def _unusable(directory: Path, why: str) -> CheckpointUnusable:
    return CheckpointUnusable(
        f"base model {directory} {why}",
        remedy="move the directory away (it is made again), or start another campaign",
    )
