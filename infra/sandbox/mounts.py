"""Folders of the node that a sandbox reads: where they may be, and that they are there.

Invariant: a mount hides nothing that a sandbox needs and is hidden by nothing of it. Imported by
the sandbox backends.
"""

from pathlib import Path, PurePosixPath

from infra.sandbox.protocol import SandboxRefused, SandboxSpec
from mainspring.errors import SandboxError

TAKEN = ("/bin", "/dev", "/etc", "/home", "/lib", "/proc", "/root", "/run", "/sys", "/tmp", "/usr")
"""And what is below them: the system's, or the agent's own."""


def checked_mounts(spec: SandboxSpec) -> list[tuple[str, Path]]:
    """Path inside and folder, sorted. Raises SandboxRefused, or SandboxError when this node lacks
    a folder."""
    for inside, folder in spec.mounts.items():
        path = PurePosixPath(inside)
        own = [PurePosixPath(own_path) for own_path in (*TAKEN, spec.workdir, *spec.writable_dirs)]
        is_taken = any(
            path.is_relative_to(own_path) or own_path.is_relative_to(path) for own_path in own
        )
        if not path.is_absolute() or ".." in path.parts or str(path) != inside or is_taken:
            raise SandboxRefused(
                f"sandbox {spec.id}: nothing can be mounted at {inside!r}",
                remedy="choose an absolute path apart from the system's and the repository's, as "
                "/opt/NAME",
            )
        if not folder.is_dir():
            raise SandboxError(
                f"sandbox {spec.id}: {folder}, to mount at {inside}, is no folder of this node",
                remedy="make it on every sandbox node; for an agent run `mainspring agents add`",
            )
    return sorted(spec.mounts.items())
