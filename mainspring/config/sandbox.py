"""Section [sandbox]: the limits of one sandbox."""

from typing import Annotated

from pydantic import Field

from mainspring.config.section import MANY, Counts, Section, Within


class SandboxConfig(Section):
    backend: str | None = Field(default=None, min_length=1)
    """Backend that isolates commands: "docker", "bwrap", or a class of your own as
    "package.module:Class" (docs/extending.md). Unset: Docker for tasks with an image, bubblewrap
    for the others."""
    memory_mb: Annotated[int, Within(le=1 << 30), Counts.ROLLOUTS] = Field(default=1024, ge=16)
    """Memory of one sandbox."""
    max_pids: Annotated[int, Within(le=1 << 22), Counts.ROLLOUTS] = Field(default=256, ge=4)
    """Processes and threads alive at once in one sandbox."""
    cpus: Annotated[float, Within(le=65_536), Counts.ROLLOUTS] = Field(default=1.0, gt=0)
    """Cores that one sandbox may use, if the backend can limit them."""
    disk_mb: Annotated[int, Within(le=1 << 40), Counts.ROLLOUTS] = Field(default=2048, ge=1)
    """Disk that one sandbox may fill, if the backend can limit it."""
    output_bytes: Annotated[int, Within(le=1 << 30)] = Field(default=1 << 20, ge=1024)
    """Maximum number of bytes kept of one command's output."""
    max_open: Annotated[int | None, Within(le=MANY), Counts.ROLLOUTS] = Field(default=None, ge=1)
    """Maximum number of open sandboxes of the run on all nodes. Unset: what the nodes hold."""
    snapshot_every_turns: Annotated[int | None, Within(le=MANY), Counts.ROLLOUTS] = Field(
        default=None, ge=1
    )
    """Number of turns between two snapshots of a sandbox's files. A lost sandbox is rebuilt from
    the newest one, and only later commands run again; unset: all run again."""
    snapshot_mb: Annotated[int, Within(), Counts.ROLLOUTS] = Field(default=16, ge=1, le=30)
    """Maximum size of one snapshot, compressed. Larger ones are not kept."""
