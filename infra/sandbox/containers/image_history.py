"""Task images without a future: the git history an agent finds ends with the image's HEAD.

What lies beyond it (later commits, other branches, stashes, reflogs, unreferenced objects) may
hold the fix. Where a task has its image altered, that is done first, in the same go. Invariants: an
image whose history goes further is never run, but another one made of it, in which a second look
found nothing; HEAD keeps its id and its ancestors with their tags, unless it was altered. Both the
images made and those that were fine as they were are known to Docker by a name of their own, SEALED
or OF_ONE_TASK with a tag made from image, workdir and alteration, so that each image is looked at
once on a node and a process that dies leaves nothing behind but a container that ends itself. A
container that is killed meanwhile tells nothing of the image: another one takes its place.
Imported by the Docker backend and by `images`, which removes such names.
"""

import asyncio
import hashlib
import shlex
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import docker
import structlog
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container
from requests.exceptions import RequestException

from infra.sandbox.containers.image_edit import ALTERED, Alteration
from infra.sandbox.containers.image_faults import FIT_REMEDY, daemon_lost, start_fault, text_of
from infra.sandbox.protocol import ImageUnfit, SandboxBroken
from mainspring.artifacts.program_files import program

SEALED = "mainspring-sealed"
OF_ONE_TASK = "mainspring-altered"
VERSION = "1"
"""Version of the scripts below: another one looks at every image again."""
LIFE_S = 3600
"""Most that a look and a rewrite take, of the largest repositories; then the container ends."""
TRIES = 3
"""Containers in which one image is looked at, when each is killed before it has an answer."""
SEALS_AT_ONCE = 4
"""On a node: repacking a repository takes a processor."""
KILLED = 137
"""Exit code of a command that SIGKILL ended: its container was killed, or memory ran out."""
REMOVED_ALREADY = (404, 409)
"""The daemon's answers about a container that is gone, or that it is removing."""
CLEAN, DIRTY, ABSENT = "history: clean", "history: dirty", "history: absent"

_BEGIN = program(__file__, "image_history_begin.sh")
LOOK = _BEGIN + program(__file__, "image_history_look.sh")
REWRITE = _BEGIN + program(__file__, "image_history_rewrite.sh")

log = structlog.get_logger()


class _CutOff(SandboxBroken):
    """The container ended before its command did."""


class _SealOrder(NamedTuple):
    image: str
    workdir: str
    alteration: Alteration

    def key(self) -> tuple[str, str]:
        place = f"{VERSION} {self.workdir}"
        if self.alteration:
            place += f" {self.alteration!r}"
        return self.image, hashlib.sha256(place.encode()).hexdigest()[:16]

    def repository(self) -> str:
        return OF_ONE_TASK if self.alteration else SEALED


class Seals:
    """Sealed images of one daemon. The SDK blocks, so its calls run in threads."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client
        self._sealed_names: dict[tuple[str, str], str] = {}
        self._running: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._at_once = asyncio.Semaphore(SEALS_AT_ONCE)

    async def sealed(self, image: str, workdir: str, alteration: Alteration) -> str:
        """The image to run for `image`, which is here. Looks and rewrites once, however many ask,
        and continues when they are cancelled. Raises ImageUnfit and what a container's start
        does."""
        order = _SealOrder(image, workdir, alteration)
        key = order.key()
        if key in self._sealed_names:
            return self._sealed_names[key]
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(self._seal(order), name=f"seal {image}")
            self._running[key] = task
            task.add_done_callback(partial(self._ended, key))
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Ask Docker again: something that was here has been removed."""
        self._sealed_names.clear()

    def _ended(self, key: tuple[str, str], task: asyncio.Task[str]) -> None:
        del self._running[key]
        if not task.cancelled() and task.exception() is None:
            self._sealed_names[key] = task.result()

    async def _seal(self, order: _SealOrder) -> str:
        try:
            async with self._at_once:
                return await asyncio.to_thread(self._seal_blocking, order)
        except APIError as error:
            raise start_fault(order.image, text_of(error)) from None
        except (DockerException, RequestException) as error:
            raise daemon_lost(error) from None

    def _seal_blocking(self, order: _SealOrder) -> str:
        tag = _prefix(self._client.api.inspect_image(order.image)["Id"]) + order.key()[1]
        name = f"{order.repository()}:{tag}"
        try:
            self._client.api.inspect_image(name)
            return name
        except ImageNotFound:
            pass
        state = self._find(order, tag)
        if state == CLEAN:
            self._client.api.tag(order.image, SEALED, tag)
        # Without a repository opening it fails, with a clearer message.
        return order.image if state == ABSENT else name

    def _find(self, order: _SealOrder, tag: str) -> str:
        for left in reversed(range(TRIES)):
            began = time.monotonic()
            try:
                return self._in_container(order.image, partial(self._cut, order, tag))
            except _CutOff as fault:
                # One that ended itself at its LIFE_S would do so again.
                if not left or time.monotonic() - began > LIFE_S:
                    raise
                log.warning("history is looked at again", image=order.image, why=fault.message)
        raise AssertionError("no try was the last one")

    def _cut(self, order: _SealOrder, tag: str, container: Container) -> str:
        """Inspect the image, and seal it if it is DIRTY or to be altered. Returns the first
        finding."""
        image, workdir, alteration = order
        state = DIRTY if alteration else self._look_at(image, workdir, container)
        if state != DIRTY:
            return state
        began = time.monotonic()
        if alteration:
            _alter(order, container)
        _run(container, workdir, REWRITE)
        container.reload()
        tops = [f"{mount['Destination']}/" for mount in container.attrs["Mounts"]]
        # What is in a volume stays in the image as it was.
        in_volume = any(f"{workdir}/".startswith(top) for top in tops)
        if in_volume or self._look_at(image, workdir, container) != CLEAN:
            raise ImageUnfit(
                f"image {image}: its git history goes beyond HEAD and cannot be cut there",
                remedy="build the image with nothing but the base commit and its ancestors, and "
                "no volume around it",
            )
        user = self._client.api.inspect_image(image)["Config"].get("User")
        container.commit(order.repository(), tag, changes=f"USER {user}" if user else None)
        done = "altered for a task" if alteration else "history beyond HEAD removed"
        log.info(done, image=image, seconds=round(time.monotonic() - began, 1))
        return state

    def _in_container(self, image: str, work: Callable[[Container], str]) -> str:
        container = self._client.containers.create(
            image,
            entrypoint=["bash", "-c", f"sleep {LIFE_S}"],
            command=[],
            user="0",  # an exec as root is without powers where this is another
            auto_remove=True,
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=["CHOWN", "DAC_OVERRIDE", "FOWNER"],
            security_opt=["no-new-privileges"],
        )
        try:
            container.start()
            try:
                return work(container)
            except APIError as error:
                if error.status_code not in REMOVED_ALREADY and _runs(container):
                    raise
                raise _cut_off(container, text_of(error)) from None
        finally:
            try:
                container.remove(force=True, v=True)
            except APIError as error:  # it ended, and its daemon removes it
                if error.status_code not in REMOVED_ALREADY:
                    raise

    def _look_at(self, image: str, workdir: str, container: Container) -> str:
        output, complaints = _run(container, workdir, LOOK)
        for word in (CLEAN, DIRTY, ABSENT):
            if output.endswith(word):
                return word
        if not complaints:
            # On a busy machine the daemon ends a killed command's output before it tells its end.
            raise _cut_off(container, "it said nothing")
        raise ImageUnfit(
            f"image {image}: its git history cannot be looked at: {complaints[-500:]}",
            remedy=FIT_REMEDY,
        )


def seals_of(client: docker.DockerClient, image_id: str) -> list[str]:
    """Names under which what was made of an image, or the image itself, is known as sealed."""
    tag = f":{_prefix(image_id)}"
    names = (*altered_images(client), *_names(client, SEALED))
    return [name for name in names if tag in name]


def altered_images(client: docker.DockerClient) -> list[str]:
    """Those made for one task, the newest first."""
    return _names(client, OF_ONE_TASK)


def _names(client: docker.DockerClient, repository: str) -> list[str]:
    listed = client.api.images(name=repository)
    return [name for image in listed for name in image.get("RepoTags") or ()]


def _prefix(image_id: str) -> str:
    return f"{image_id.rpartition(':')[2][:40]}-"


def _alter(order: _SealOrder, container: Container) -> None:
    container.put_archive("/", order.alteration.archive())
    output, complaints = _run(container, order.workdir, _BEGIN + order.alteration.script())
    if not output.endswith(ALTERED):
        raise ImageUnfit(
            f"image {order.image}: its repository at {order.workdir} cannot be altered as the "
            f"task wants: {complaints[-500:]}",
            remedy="compare the task's base_patch and hidden_files with what the image holds",
        )


def _run(container: Container, workdir: str, script: str) -> tuple[str, str]:
    """Output of the script, and what it complains of. Raises _CutOff when it could not finish."""
    script = f"workdir={shlex.quote(workdir)}\n{script}"
    ran: Any = container.exec_run(["bash", "-lc", script], user="0", demux=True)
    output, complaints = ((stream or b"").decode(errors="replace").strip() for stream in ran.output)
    if ran.exit_code == KILLED or (ran.exit_code != 0 and not _runs(container)):
        raise _cut_off(container, complaints[-500:] or f"exit code {ran.exit_code}")
    return output, complaints


def _runs(container: Container) -> bool:
    try:
        container.reload()
    except NotFound:
        return False
    return container.status == "running"


def _cut_off(container: Container, output: str) -> _CutOff:
    return _CutOff(
        f"container {container.name} was killed while its image's git history was looked at: "
        f"{output}",
        remedy="look for who removes containers on this node, and whether its memory suffices; "
        "it will be tried again",
    )
