"""The packages of this distribution, whose names others use too: `workflows`, `trainer`, `cli`; and
where modules of users are found.

Invariant: a package of somebody else that Python finds under one of these names is told at the
start, with its place; so are files of ours that another distribution has overwritten. Imported by
the command line.
"""

import base64
import hashlib
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from mainspring.config.registry import FOLDERS
from mainspring.errors import ConfigError

NAMES = (
    *("activities", "bundled", "cli", "engine", "gateway", "infra", "migrations", "node"),
    *("reports", "trainer", "view", "workers", "workflows"),
)
_ROOT = Path(__file__).resolve().parents[1]


def refuse_strangers() -> None:
    """Raises ConfigError naming the first package of ours that Python finds elsewhere."""
    for name in NAMES:
        spec = find_spec(name)
        path = Path(spec.origin).resolve() if spec and spec.origin else None
        if path != _ROOT / name / "__init__.py":
            raise ConfigError(
                f"Python finds the package `{name}` at {path or 'no file'}, and Mainspring's is "
                f"in {_ROOT}: another project has one of the same name",
                remedy="install Mainspring into an environment of its own, and start it where "
                f"neither the folder nor PYTHONPATH has a `{name}`",
            )


def import_beside(file: Path | None) -> Path | None:
    """Let this process and those that it starts find modules in the folder of a campaign file."""
    if file is not None:
        import_from([str(file.absolute().parent)])
    return file


def import_from(folders: Sequence[str]) -> None:
    """The same for folders that a run was started with."""
    known = os.environ.get(FOLDERS, "").split(os.pathsep)
    os.environ[FOLDERS] = os.pathsep.join(dict.fromkeys(filter(None, (*known, *folders))))


def overwritten() -> list[str]:
    """Files of an installed wheel that are not the ones it brought; none in a checkout."""
    try:
        files = distribution("mainspring").files or []
    except PackageNotFoundError:
        return []
    changed: list[str] = []
    for file in files:
        if file.hash is None or file.suffix != ".py" or file.hash.mode != "sha256":
            continue
        path = Path(str(file.locate()))
        digest = hashlib.sha256(path.read_bytes()).digest() if path.exists() else b""
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(str(file))
    return changed
