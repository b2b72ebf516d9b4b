"""Which sandbox backend runs a task on this node, and why another cannot.

Docker for tasks that name an image, bubblewrap for those that need none. Probing really makes a
sandbox and really asks the daemon. Imported by the sandbox node and by `mainspring doctor`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_never

from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.containers.docker import DockerBackend
from infra.sandbox.protocol import BackendUnavailable, SandboxBackend
from mainspring.tasks.task import BackendName

Available = Mapping[BackendName, SandboxBackend | BackendUnavailable]
"""Each backend, or why it cannot run here."""


async def available_backends(state_dir: Path, mirrors: Sequence[str] = ()) -> Available:
    """`state_dir` is the node's own: it holds, or names, all its sandboxes. Images are pulled from
    `mirrors` first."""
    found = await asyncio.gather(*(_probe(name, state_dir, mirrors) for name in BackendName))
    return dict(zip(BackendName, found, strict=True))


def choose_backend(image: str | None, available: Available) -> SandboxBackend:
    """The backend for a task with this image. Raises BackendUnavailable."""
    name = BackendName.BWRAP if image is None else BackendName.DOCKER
    backend = available[name]
    if not isinstance(backend, BackendUnavailable):
        return backend
    if image is not None:
        raise BackendUnavailable(
            f"image {image} needs Docker: {backend.message}", remedy=backend.remedy
        )
    raise BackendUnavailable(
        f"a task without an image needs bubblewrap: {backend.message}", remedy=backend.remedy
    )


async def _probe(
    name: BackendName, state_dir: Path, mirrors: Sequence[str]
) -> SandboxBackend | BackendUnavailable:
    try:
        match name:
            case BackendName.BWRAP:
                backend = BwrapBackend(state_dir)
            case BackendName.DOCKER:
                backend = await asyncio.to_thread(DockerBackend, state_dir, mirrors)
            case _:
                assert_never(name)
        await backend.probe()
    except BackendUnavailable as unavailable:
        return unavailable
    return backend
