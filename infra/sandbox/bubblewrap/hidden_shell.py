"""The program of a sandbox's first process: a copy of bash that the sandbox's user cannot read.

The kernel gives no process the memory and the pipes of one whose program its user cannot read, so
no command learns the shell's nonce, answers in its place or takes its calls. Invariants: one copy
for each version of the node's bash; it appears complete or not at all. Imported by the bubblewrap
backend.
"""

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from infra.sandbox.bubblewrap.command import SEARCH


class HiddenShell:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self) -> Path | None:
        """The copy, made where it is missing. None where bash is missing or the directory's file
        system executes nothing: then shell.sh hides itself if it can. Raises OSError."""
        bash = shutil.which("bash", path=os.pathsep.join(SEARCH))
        if bash is None:
            return None
        about = os.stat(bash)
        copy = self._directory / f"shell-{about.st_mtime_ns}-{about.st_size}"
        if not copy.exists():
            building = copy.with_name(f"{copy.name}.{uuid.uuid4().hex}")
            try:
                shutil.copyfile(bash, building)
                building.chmod(0o111)
                building.rename(copy)
            except OSError:
                with contextlib.suppress(FileNotFoundError):
                    building.unlink()
                raise
        return copy if os.access(copy, os.X_OK) else None
