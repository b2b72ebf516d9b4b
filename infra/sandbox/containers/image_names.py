"""Names of images: what a task may write, what Docker means by it, where a mirror keeps it.

Pure. Two spellings of one image have equal `ImageName`s. Imported by the modules about images
beside this file.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from infra.sandbox.protocol import ImageUnknown
from mainspring.errors import ConfigError

HUB = "docker.io"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d+)?"
_PATH = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY = rf"{_PATH}(?:/{_PATH})*"
_NAME = re.compile(
    rf"(?P<host>{_HOST})/(?P<repository>{_REPOSITORY})"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>[a-z][a-z0-9.+_-]*:[0-9a-f]{32,}))?",
    re.ASCII,
)
_PREFIX = re.compile(rf"{_HOST}(?:/{_REPOSITORY})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ImageName:
    registry: str
    repository: str
    tag: str
    """Empty when there is a digest, which is more exact."""
    digest: str
    """Or empty."""

    @classmethod
    def parse(cls, image: str) -> Self:
        """Raises ImageUnknown when no image can have this name."""
        first, _, rest = image.partition("/")
        is_host = bool(rest) and (first == "localhost" or bool(set(first) & set(".:")))
        match = _NAME.fullmatch(image if is_host else f"{HUB}/{image}")
        if match is None:
            raise ImageUnknown(
                f"{image!r} is not the name of an image",
                remedy="as in registry.example/team/name:tag, in lower case and without https://",
            )
        registry = HUB if match["host"] == f"index.{HUB}" else match["host"]
        repository = match["repository"]
        if registry == HUB and "/" not in repository:
            repository = f"library/{repository}"
        digest = match["digest"] or ""
        return cls(registry, repository, "" if digest else match["tag"] or "latest", digest)

    @property
    def place(self) -> str:
        """Without the tag or digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def reference(self) -> str:
        """The tag or digest."""
        return self.digest or self.tag

    def __str__(self) -> str:
        return f"{self.place}{'@' if self.digest else ':'}{self.reference}"


def mirrored(image: ImageName, prefix: str) -> ImageName:
    """Where a mirror keeps the image: Docker Hub's at the prefix itself, another registry's below
    that registry's name."""
    path = image.repository if image.registry == HUB else image.place
    host, _, folder = prefix.partition("/")
    # No port is allowed in a path.
    path = path.replace(":", "-")
    return ImageName(host, f"{folder}/{path}" if folder else path, image.tag, image.digest)


def parse_mirrors(prefixes: str | Sequence[str]) -> tuple[str, ...]:
    """`MAINSPRING_IMAGE_MIRRORS`, or a list of such. Raises ConfigError."""
    listed = prefixes.split(",") if isinstance(prefixes, str) else prefixes
    stripped = tuple(mirror for prefix in listed if (mirror := prefix.strip().rstrip("/")))
    for prefix in stripped:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError(
                f"image mirror {prefix!r} is not a registry",
                remedy="as in mirror.example/hub, in lower case and without https://",
            )
    return stripped
