"""Pulling images: from mirrors first, once however many ask, again while it may help.

Invariants: one pull of an image at a time and NUM_AT_ONCE in all; an image from a mirror gets its
own name and loses the mirror's; a pull continues when all its callers have gone, so that the
next attempt finds it done. The SDK blocks, so it runs in threads. Imported by `images`.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import docker
from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from infra.sandbox.containers.image_faults import (
    ImageFaultCause,
    RegistryAnswer,
    daemon_lost,
    pull_cause,
    pull_fault,
    text_of,
)
from infra.sandbox.containers.image_names import ImageName, mirrored

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Bytes here, bytes in all as far as is known; called in another thread."""

NUM_AT_ONCE = 3
"""As many as Docker itself loads layers at once: more would only share the line."""
NUM_TRIES = 5
BACKOFF_S = 1.0
"""Doubles with each try: about fifteen seconds of a registry's hiccup are waited out here, longer
ones by the caller."""


class Puller:
    def __init__(
        self,
        client: docker.DockerClient,
        mirrors: Sequence[str],
        pulled: Callable[[ImageName], None],
        *,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        """`pulled` hears of each image that came, also when no caller waits for it any more."""
        self._client = client
        self._mirrors = tuple(mirrors)
        self._pulled = pulled
        self._backoff_s = backoff_s
        # Its size is the limit of pulls at once. Not the loop's own threads: a loop that ends
        # waits for those.
        self._threads = ThreadPoolExecutor(NUM_AT_ONCE, thread_name_prefix="pull")
        self._running: dict[ImageName, asyncio.Task[None]] = {}

    def local_names(self, image: str) -> list[str]:
        """Names that the image may have on this node. A digest cannot be tagged: what a mirror gave
        for one keeps the mirror's name."""
        name = ImageName.parse(image)
        return [image, *(str(mirrored(name, mirror)) for mirror in self._mirrors if name.digest)]

    async def pull(self, image: str, progress: Progress | None = None) -> None:
        """`progress` is the first asker's. Raises an Image* error of the protocol, DiskFull, or
        BackendUnavailable."""
        name = ImageName.parse(image)
        task = self._running.get(name)
        if task is None:
            task = asyncio.create_task(self._pull(name, progress), name=f"pull {name}")
            self._running[name] = task
            task.add_done_callback(partial(self._ended, name))
        await asyncio.shield(task)

    def _ended(self, name: ImageName, task: asyncio.Task[None]) -> None:
        del self._running[name]
        if not task.cancelled():
            task.exception()  # seen, also when no caller waits any more

    async def _pull(self, name: ImageName, progress: Progress | None) -> None:
        answers: list[RegistryAnswer] = []
        for source in (*(mirrored(name, prefix) for prefix in self._mirrors), name):
            answer = await self._pull_from(source, name, progress)
            if answer is None:
                self._pulled(name)
                return
            answers.append(answer)
            if answer.cause is ImageFaultCause.DISK_FULL:
                break
        raise pull_fault(name, answers)

    async def _pull_from(
        self, source: ImageName, name: ImageName, progress: Progress | None
    ) -> RegistryAnswer | None:
        answer = None
        for past in range(NUM_TRIES):
            if past:
                wait_s = self._backoff_s * 2 ** (past - 1)
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            answer = await self._call(self._try, source, name, progress)
            if answer is None or answer.cause is not ImageFaultCause.TRANSIENT:
                break
        return answer

    def _try(
        self, source: ImageName, name: ImageName, progress: Progress | None
    ) -> RegistryAnswer | None:
        """None when the image is here. Blocks for as long as it takes."""
        api = self._client.api
        is_taken = source != name and bool(api.images(name=str(source)))
        try:
            layers = Layers()
            for event in api.pull(source.place, tag=source.reference, stream=True, decode=True):
                if reason := event.get("error"):
                    return RegistryAnswer(source.place, pull_cause(reason), reason)
                if progress is not None and layers.saw(event):
                    progress(*layers.bytes)
        except APIError as error:
            reason = text_of(error)
            return RegistryAnswer(source.place, pull_cause(reason), reason)
        if source != name and not name.digest:
            api.tag(str(source), name.place, name.tag)
            if not is_taken:  # somebody else's name stays
                _untag(self._client, source)
        return None

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, function, *args)
        except (DockerException, RequestException, HTTPError) as error:
            raise daemon_lost(error) from None


class Layers:
    """Sums up a pull's events, which are about one layer each."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}

    def saw(self, event: dict[str, Any]) -> bool:
        """Whether this changed anything."""
        layer, status = event.get("id", ""), event.get("status")
        if status == "Downloading":
            detail = event.get("progressDetail") or {}
            self._layers[layer] = (detail.get("current", 0), detail.get("total", 0))
        elif status == "Download complete" and layer in self._layers:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        else:
            return False
        return True

    @property
    def bytes(self) -> tuple[int, int]:
        here, total = zip(*self._layers.values(), strict=True)
        return sum(here), sum(total)


def _untag(client: docker.DockerClient, image: ImageName) -> None:
    try:
        client.api.remove_image(str(image))
    except NotFound:
        return
