"""What is done to a task's image before anyone begins: a patch applied, files taken away.

The repository's history up to then would tell what was done, and goes: one commit remains, the same
on every node. Pure; the image itself is made in `image_history`. Imported by it, by `protocol` and
by who makes a SandboxSpec.
"""

import shlex
from dataclasses import dataclass

from infra.sandbox.archive import tar_of
from mainspring.artifacts.program_files import program

PATCH_FILE = "mainspring-base.patch"
ALTERED = "image: altered"

_SCRIPT = program(__file__, "image_edit.sh")


@dataclass(frozen=True, slots=True)
class Alteration:
    patch: str = ""
    """For `git apply`; its paths are relative to the working directory."""
    absent_files: tuple[str, ...] = ()
    """Files and directories to take away: relative to the working directory, or
    absolute."""

    def __bool__(self) -> bool:
        return bool(self.patch or self.absent_files)

    def script(self) -> str:
        """Bash, after what sets `head`, in a container that holds `archive` at its root. It ends
        with ALTERED where all went well."""
        return (
            f"set -e -o pipefail\npatch=/{PATCH_FILE}\n"
            f"absent=({shlex.join(self.absent_files)})\n{_SCRIPT}echo {shlex.quote(ALTERED)}\n"
        )

    def archive(self) -> bytes:
        """A tar of PATCH_FILE, where there is a patch."""
        patch = self.patch.encode(errors="surrogateescape")
        return tar_of({PATCH_FILE: patch} if patch else {}, 0o644)


NO_ALTERATION = Alteration()
