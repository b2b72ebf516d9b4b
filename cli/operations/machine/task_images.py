"""`mainspring tasks images`: which images of the stored tasks are here, and how the rest comes.

Invariants: what is here is not pulled again; one image that fails does not keep the others from
coming; after an interruption the next run resumes with what is missing. Imported by the command
line.
"""

import asyncio
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import docker
from docker.errors import DockerException
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TimeElapsedColumn,
)

from cli.tables import Label, Screen
from infra.db.tasks.tasks import TaskImage
from infra.sandbox.containers.docker import IMAGES_DIR
from infra.sandbox.containers.image_faults import daemon_lost
from infra.sandbox.containers.image_pull import NUM_AT_ONCE
from infra.sandbox.containers.images import ImageStore
from infra.sandbox.protocol import BackendUnavailable, DiskFull
from mainspring.errors import SandboxError

CALL_TIMEOUT_S = 120
STATE = Path("sandboxes") / IMAGES_DIR
"""Folder below the state folder, shared with the node that runs here."""
NOT_ASKED = "not pulled, because the disk is full"


@dataclass(frozen=True, slots=True)
class ImageStatus:
    image: str
    num_tasks: int
    num_bytes: int | None
    """None: it is not here."""
    error: str | None = None
    """Why it could not be pulled."""


def open_store(home: Path, mirrors: Sequence[str]) -> ImageStore:
    """Raises BackendUnavailable."""
    try:
        client = docker.from_env(timeout=CALL_TIMEOUT_S, max_pool_size=NUM_AT_ONCE + 2)
    except DockerException as error:
        raise daemon_lost(error) from None
    return ImageStore(client, home / STATE, mirrors)


async def survey(store: ImageStore, images: Collection[TaskImage]) -> list[ImageStatus]:
    sizes = await store.sizes([image.image for image in images])
    return [ImageStatus(image.image, image.num_tasks, sizes[image.image]) for image in images]


async def pull_missing(store: ImageStore, images: Collection[TaskImage]) -> list[ImageStatus]:
    """Shows its progress on stderr. Raises BackendUnavailable when Docker goes away."""
    before = await survey(store, images)
    missing = [status.image for status in before if status.num_bytes is None]
    errors = await _pull(store, missing) if missing else {}
    return [
        replace(status, error=errors.get(status.image)) for status in await survey(store, images)
    ]


async def _pull(store: ImageStore, missing: Sequence[str]) -> dict[str, str]:
    """Why each image that did not come did not."""
    errors: dict[str, str] = {}
    waiting, counted = iter(missing), itertools.count(1)
    columns = (
        Label("{task.description}"),
        BarColumn(),
        Label("{task.fields[so_far]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Screen(stderr=True), transient=True) as bars:
        whole = bars.add_task("images", total=len(missing), so_far=f"0 of {len(missing)}")

        async def one_by_one() -> None:
            for image in waiting:
                line = bars.add_task(image, total=None, so_far="")
                try:
                    await store.ensure(image, partial(_show, bars, line))
                except BackendUnavailable:
                    raise
                except SandboxError as error:
                    errors[image] = str(error)
                    if isinstance(error, DiskFull):
                        errors.update((left, NOT_ASKED) for left in waiting)
                finally:
                    bars.remove_task(line)
                num_done = next(counted)
                bars.update(whole, completed=num_done, so_far=f"{num_done} of {len(missing)}")

        await asyncio.gather(*(one_by_one() for _ in range(NUM_AT_ONCE)))
    return errors


def _show(bars: Progress, line: TaskID, here: int, total: int) -> None:
    so_far = f"{here / 1e6:.0f} of {total / 1e6:.0f} MB"
    bars.update(line, completed=here, total=total, so_far=so_far)
