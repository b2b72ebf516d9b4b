"""Docker's reports of an image that cannot be had or run, and whose fault that is.

Docker's API has status codes, but gives 500 for nearly all that a registry answered: only the text
tells. Invariant: what is not known to be the image's fault is the infrastructure's and is tried
again, so that a registry that is down never makes a task invalid. The texts are Docker's, with its
own and with containerd's image store, and Podman's. Imported by the modules about images and by the
Docker backend.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from docker.constants import DEFAULT_UNIX_SOCKET
from docker.errors import APIError

from infra.sandbox.containers.image_names import HUB, ImageName
from infra.sandbox.protocol import (
    BackendUnavailable,
    DiskFull,
    ImageDenied,
    ImageUnfit,
    ImageUnknown,
    ImageUnreachable,
)
from mainspring.errors import SandboxError

FIT_REMEDY = "an image needs bash, git, tar and the repository at the task's workdir"


class ImageFaultCause(StrEnum):
    DISK_FULL = "disk_full"
    """No room on this node, whatever registry is asked."""
    UNFIT = "unfit"
    """There is none for this machine's architecture."""
    DENIED = "denied"
    UNKNOWN = "unknown"
    """The registry answers, and has no such image."""
    TRANSIENT = "transient"
    """Anything else: worth trying again."""


_DISK_FULL = re.compile("no space left on device|disk quota exceeded", re.I)
_PULL_CAUSES = (
    (ImageFaultCause.DISK_FULL, _DISK_FULL),
    # Before "denied": registries that count pulls advise to log in.
    (
        ImageFaultCause.TRANSIENT,
        re.compile(r"toomanyrequests|too many requests|\b429\b|HTTP status: 5", re.I),
    ),
    (
        ImageFaultCause.UNFIT,
        re.compile("no matching manifest|not match the specified platform|no image found in", re.I),
    ),
    (
        ImageFaultCause.DENIED,
        re.compile(
            # "permission denied" is this machine's
            r"(?<!permission )\bdenied\b|unauthorized\b|no basic auth credentials"
            r"|insufficient_scope|authentication required|40[13] (unauthorized|forbidden)"
            r"|HTTP 40[13]\b",
            re.I,
        ),
    ),
    (
        ImageFaultCause.UNKNOWN,
        re.compile(
            r"(manifest|name) unknown|repository does not exist|HTTP 404\b|404 not found"
            r"|: not found\b|manifest for .* not found|invalid reference format",
            re.I,
        ),
    ),
)
_QUOTED = re.compile(r"\"[^\"]*\"|https?://\S+")
_NO_PROGRAM = re.compile(
    # Of bash only: the daemon reports the same of a runtime it lacks.
    r"exec:? [\"'`]?(/\S*)?bash\b.*(not found|no such file|permission denied|format error)"
    r"|executable file `bash` not found|exec user process caused|exec format error"
    # Of the task's workdir.
    r"|Cannot mkdir: .* is not a directory|container init: mkdir /",
    re.I,
)


@dataclass(frozen=True, slots=True)
class RegistryAnswer:
    """Why one registry did not give the image."""

    place: str
    cause: ImageFaultCause
    text: str


def pull_cause(text: str) -> ImageFaultCause:
    bare = _QUOTED.sub("", text)  # names and addresses may hold any word
    return next(
        (cause for cause, pattern in _PULL_CAUSES if pattern.search(bare)),
        ImageFaultCause.TRANSIENT,
    )


def pull_fault(image: ImageName, answers: Sequence[RegistryAnswer]) -> SandboxError:
    """From what each registry answered; the image's own is the last, and its word counts."""
    reason = "; ".join(f"{answer.place}: {answer.text}" for answer in answers)
    if len(answers) == 1:
        reason = answers[0].text
    causes = [answer.cause for answer in answers]
    if ImageFaultCause.DISK_FULL in causes:
        return DiskFull(
            f"image {image} does not fit on this node's disk: {reason}",
            remedy="free space where Docker keeps its images (`docker system df`)",
        )
    if ImageFaultCause.TRANSIENT in causes:
        return ImageUnreachable(
            f"image {image} cannot be pulled now: {reason}",
            remedy="check this node's network, its proxy and the registry; it will be tried again",
        )
    match causes[-1]:
        case ImageFaultCause.UNFIT:
            return ImageUnfit(
                f"image {image} is not made for this node's architecture: {reason}",
                remedy="run the task on nodes it is made for, or build the image for this one",
            )
        case ImageFaultCause.DENIED:
            login = "docker login" + ("" if image.registry == HUB else f" {image.registry}")
            return ImageDenied(
                f"image {image} is refused: {reason}",
                remedy=f"check the name; if it is right, run `{login}` on this node as the "
                "worker's user",
            )
        case _:
            return ImageUnknown(
                f"image {image} does not exist: {reason}",
                remedy="check the name in the task, or load the image here with `docker load`",
            )


def start_fault(image: str, text: str) -> SandboxError:
    """From what the daemon or the container's runtime said of a container that did not start."""
    if _DISK_FULL.search(text):
        return DiskFull(
            f"no room for a container of image {image}: {text}",
            remedy="free space where Docker keeps its images (`docker system df`)",
        )
    if _NO_PROGRAM.search(text):
        return ImageUnfit(f"image {image} cannot run: {text}", remedy=FIT_REMEDY)
    return SandboxError(
        f"no container of image {image} starts here: {text}",
        remedy="look into the daemon's log on this node; it will be tried again",
    )


def daemon_lost(error: Exception) -> BackendUnavailable:
    if isinstance(error, APIError):
        return BackendUnavailable(
            f"the Docker daemon failed: {text_of(error)}", remedy="look into the daemon's log"
        )
    return BackendUnavailable(
        f"no Docker daemon answers at {os.environ.get('DOCKER_HOST') or DEFAULT_UNIX_SOCKET}: "
        f"{_cause_of(error)}",
        remedy="start Docker (or Podman's socket), or set DOCKER_HOST to where it listens",
    )


def _cause_of(error: BaseException) -> str:
    """The system's own words, without the exceptions that libraries wrapped around them."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)


def text_of(error: APIError) -> str:
    return str(error.explanation or error)
