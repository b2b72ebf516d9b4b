"""Whether the sandbox backends of this machine can run a campaign's tasks, asked before it starts.

Invariant: asked only by commands that bring up their own node, and for what the campaign will
really use; without it each rollout would be retried for minutes before a fault tells the same. A
command for a team's workers cannot see their machines and does not ask.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from infra.db import selections
from infra.db.database import Database
from infra.sandbox.backends import Available, available_backends
from infra.sandbox.protocol import BackendUnavailable
from mainspring.ids import TaskId
from mainspring.tasks.task import BackendName


async def backends_here() -> Available:
    """Each backend of this machine, or why it cannot run."""
    with tempfile.TemporaryDirectory(prefix="mainspring-probe-") as nowhere:
        return await available_backends(Path(nowhere))


async def require_backends(
    db: Database, campaign: str, used: Sequence[TaskId], here: Available
) -> None:
    """Raises BackendUnavailable when one that a task needs does not work here."""
    with_image = await selections.num_with_image(db, used)
    for number, name, what in (
        (with_image, BackendName.DOCKER, "an image and need Docker"),
        (len(used) - with_image, BackendName.BWRAP, "no image and need bubblewrap"),
    ):
        found = here[name]
        if number and isinstance(found, BackendUnavailable):
            raise BackendUnavailable(
                f"campaign {campaign}: {number} of its {len(used)} tasks have {what}: "
                f"{found.message}",
                remedy=found.remedy,
            )
