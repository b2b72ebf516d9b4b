"""Task images on this node's Docker: there when a sandbox needs them, gone when the disk is full.

Invariants: an image is pulled once, however many ask; what is removed is one of the images this
store was asked for, can be pulled again, has been idle for MIN_IDLE_S, and no container, running or
stopped, uses it: nothing else of the host is touched, nor an image that is about to be used. One
event loop owns a store; stores of other processes may share its state. The SDK blocks, so it runs
in threads. Imported by the Docker backend, the node's beat and `mainspring tasks images`.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import docker
import structlog
from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import RequestException

from infra.sandbox.containers.image_faults import daemon_lost, text_of
from infra.sandbox.containers.image_history import OF_ONE_TASK, SEALED, altered_images, seals_of
from infra.sandbox.containers.image_names import ImageName
from infra.sandbox.containers.image_pull import BACKOFF_S, Progress, Puller
from infra.sandbox.containers.image_record import ImageRecord
from infra.sandbox.protocol import ImageUnknown, ImageUnreachable

T = TypeVar("T")

TIMEOUT_S = 5
MIN_IDLE_S = 900.0
"""Far longer than from `ensure` to the container that holds the image: no caller loses the image it
is about to use, and an image is not removed between two rollouts of one group."""

log = structlog.get_logger()


class ImageStore:
    def __init__(
        self,
        client: docker.DockerClient,
        state_dir: Path,
        mirrors: Sequence[str] = (),
        *,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        self._client = client
        self._record = ImageRecord(state_dir)
        self._puller = Puller(client, mirrors, self._note_pulled, backoff_s=backoff_s)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._collecting = asyncio.Lock()

    async def ensure(self, image: str, progress: Progress | None = None) -> str:
        """Pull the image if it is missing, and return its name here: its own, except for a digest
        that a mirror gave. Waits for as long as a pull takes; cancelled, the pull continues.

        Raises ImageUnknown, ImageDenied, ImageUnfit, ImageUnreachable, or BackendUnavailable.
        """
        self.touch(image)
        async with self._lock(image):
            name = await self._call(self._find, image)
        if name is not None:
            return name
        await self._puller.pull(image, progress)
        name = await self._call(self._find, image)
        if name is None:
            raise ImageUnreachable(
                f"image {image} was pulled, and Docker does not have it",
                remedy="something else on this node removes images; it will be tried again",
            )
        return name

    def touch(self, image: str) -> None:
        """Note that the image is used now. Writes a small file, at most once a minute."""
        self._record.note(str(ImageName.parse(image)))

    async def sizes(self, images: Iterable[str]) -> dict[str, int | None]:
        """Bytes of each image; None: it is not here."""
        here = await self._call(self._list_here)
        return {
            image: next((size for name in names if (size := here.get(name)) is not None), None)
            for image, names in ((image, self._full_names(image)) for image in images)
        }

    async def collect(self, min_free_mb: int, in_use: Collection[str] = ()) -> list[str]:
        """Remove images, the least recently used first, until Docker's disk has that much free;
        which went. Images `in_use` stay. Before any of them go those that were made for one task:
        they can be made again in seconds. Raises BackendUnavailable."""
        names_in_use = {str(ImageName.parse(image)) for image in in_use}
        removed: list[str] = []
        async with self._collecting:
            if await self._call(self._free_mb) >= min_free_mb:
                return removed
            await self._call(self._remove_altered, min_free_mb)
            uses = sorted(self._record.read().items(), key=lambda item: item[1].used_at)
            for image in (image for image, _ in uses if image not in names_in_use):
                if await self._call(self._free_mb) >= min_free_mb:
                    break
                async with self._lock(image):
                    # Asked again: it may have been used while others were removed.
                    use = self._record.read().get(image)
                    if use is None or time.time() - use.used_at < MIN_IDLE_S:
                        continue
                    name = await self._call(self._find, image)
                    if name is None:
                        self._record.forget(image)
                    elif await self._call(self._remove, name, use.pulled):
                        self._record.forget(image)
                        removed.append(image)
        if removed:
            log.info("images removed, the disk was low", images=removed)
        return removed

    def _note_pulled(self, image: ImageName) -> None:
        self._record.note(str(image), pulled=True)

    def _lock(self, image: str) -> asyncio.Lock:
        return self._locks.setdefault(str(ImageName.parse(image)), asyncio.Lock())

    def _find(self, image: str) -> str | None:
        for name in self._puller.local_names(image):
            try:
                self._client.api.inspect_image(name)
            except NotFound:
                continue
            return name
        return None

    def _full_names(self, image: str) -> list[str]:
        try:
            return [str(ImageName.parse(name)) for name in self._puller.local_names(image)]
        except ImageUnknown:
            return []

    def _list_here(self) -> dict[str, int]:
        listed = self._client.api.images()
        return {
            full_name: image["Size"]
            for image in listed
            for name in _names(image)
            for full_name in self._full_names(name)
        }

    def _free_mb(self) -> int:
        """On the disk of Docker's images; a disk of another machine counts as empty."""
        if not self._client.api.base_url.startswith("http+docker:"):  # by a socket
            return sys.maxsize
        root = self._client.info()["DockerRootDir"]
        # A worker in a container does not see the folder; its own root is on the same disk.
        return shutil.disk_usage(root if os.path.isdir(root) else "/").free >> 20

    def _remove_altered(self, min_free_mb: int) -> None:
        for name in reversed(altered_images(self._client)):
            with contextlib.suppress(APIError):  # a container has it
                self._client.api.remove_image(name)
            if self._free_mb() >= min_free_mb:
                break

    def _remove(self, name: str, pulled: bool) -> bool:
        """False when it must stay. Without force, Docker too refuses what a container uses."""
        inspected = self._client.api.inspect_image(name)
        # What was made of it goes with it, and first: it holds its layers.
        seals = seals_of(self._client, inspected["Id"])
        ids = {inspected["Id"], *(self._client.api.inspect_image(seal)["Id"] for seal in seals)}
        used = {container["ImageID"] for container in self._client.api.containers(all=True)}
        if not ids.isdisjoint(used) or not (pulled or inspected.get("RepoDigests")):
            return False
        try:
            for reference in (*seals, name):
                self._client.api.remove_image(reference)
        except APIError as error:
            log.warning("image stays", image=name, why=text_of(error))
            return False
        return True

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        try:
            return await asyncio.to_thread(function, *args)
        except (DockerException, RequestException) as error:
            raise daemon_lost(error) from None


def present_images() -> list[str]:
    """Tags and digests of all images here, sorted. A daemon that does not answer has none, as far
    as anyone can use. Blocks for up to TIMEOUT_S: call it in a thread."""
    try:
        client = docker.from_env(timeout=TIMEOUT_S)
        try:
            listed = client.api.images()
        finally:
            client.close()
    except (DockerException, RequestException):
        return []
    return sorted({name for image in listed for name in _names(image)})


def _names(listed: dict[str, Any]) -> list[str]:
    # Both are null, not empty, for images without a name.
    names = (*(listed.get("RepoTags") or ()), *(listed.get("RepoDigests") or ()))
    own_prefixes = (f"{SEALED}:", f"{OF_ONE_TASK}:")
    return [name for name in names if "<none>" not in name and not name.startswith(own_prefixes)]
