"""The migration that this program needs, read from the names of the migrations' files.

Invariant: files are named by their revision, NNNN_<what>.py, and the highest is the newest; a test
compares with Alembic, which takes a quarter of a second to load and is needed to migrate only.
"""

from functools import cache
from pathlib import Path

import migrations


@cache
def needed() -> str:
    folder = Path(migrations.__file__).parent / "versions"
    return max(path.name.partition("_")[0] for path in folder.glob("[0-9]*_*.py"))
