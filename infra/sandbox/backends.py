"""The sandbox backends by name, and those that one node can run, with why another cannot.

Mainspring's own are probed when a node starts. A class of your own, named by its path, is imported
and probed when it is first asked for: by a campaign, or by the lease of a sandbox that an earlier
process of the node left. Invariants: a backend is made and probed once in a process; probing
really makes a sandbox and really asks the daemon; what cannot run is refused by name, and no
other backend takes its place. Imported by the sandbox node and by commands.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.containers.docker import DockerBackend
from infra.sandbox.protocol import BackendPlace, BackendUnavailable, SandboxBackend
from mainspring.config.registry import Registry
from mainspring.errors import ConfigError
from mainspring.tasks.sandbox_choice import BWRAP, DOCKER, backend_name

Found = SandboxBackend | BackendUnavailable
"""A backend, or why it cannot run here."""


class _Docker(DockerBackend):
    def __init__(self, place: BackendPlace) -> None:
        super().__init__(place.state_dir, place.mirrors)


class _Bwrap(BwrapBackend):
    def __init__(self, place: BackendPlace) -> None:
        super().__init__(place.state_dir)


BACKENDS: Registry[Callable[[BackendPlace], SandboxBackend]] = Registry(
    "sandbox backend",
    ((DOCKER, _Docker), (BWRAP, _Bwrap)),
    takes="place",
    methods=("probe", "open", "attach", "rename", "list_open", "remove"),
)


class Backends(Mapping[str, Found]):
    """Backends of one node. As a mapping: those that were asked for so far."""

    def __init__(
        self,
        backends: Mapping[str, Found],
        state_dir: Path | None = None,
        mirrors: Sequence[str] = (),
    ) -> None:
        """Without `state_dir`, where a backend keeps its sandboxes, no other one can be had."""
        self._backends = dict(backends)
        self._state_dir = state_dir
        self._mirrors = mirrors
        self._one_asks = asyncio.Lock()

    def __getitem__(self, name: str) -> Found:
        return self._backends[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._backends))

    def __len__(self) -> int:
        return len(self._backends)

    def with_backends(self, others: Mapping[str, Found]) -> Self:
        """The same with some in the place of others."""
        return type(self)({**self._backends, **others}, self._state_dir, self._mirrors)

    def working(self) -> dict[str, SandboxBackend]:
        return {
            name: backend
            for name, backend in self._backends.items()
            if not isinstance(backend, BackendUnavailable)
        }

    async def find(self, name: str) -> Found:
        """The backend of this name; one that is not known yet is imported and probed."""
        if name in self._backends:
            return self._backends[name]
        async with self._one_asks:
            if name not in self._backends:
                if self._state_dir is None:
                    return BackendUnavailable(f"this node has no sandbox backend {name!r}")
                place = BackendPlace(name, _state_dir_of(name, self._state_dir), self._mirrors)
                self._backends[name] = await _probe(place)
            return self._backends[name]

    async def choose(self, configured: str | None, image: str | None) -> SandboxBackend:
        """The backend for a task with this image in a campaign with this `sandbox.backend`.

        Raises BackendUnavailable."""
        name = backend_name(configured, image)
        backend = await self.find(name)
        if not isinstance(backend, BackendUnavailable):
            return backend
        if configured is not None:
            asker = f"sandbox.backend {configured!r} cannot run here"
        elif image is not None:
            asker = f"image {image} needs Docker"
        else:
            asker = "a task without an image needs bubblewrap"
        raise BackendUnavailable(f"{asker}: {backend.message}", remedy=backend.remedy)


async def available_backends(
    state_dir: Path, mirrors: Sequence[str] = (), names: Iterable[str] = tuple(BACKENDS)
) -> Backends:
    """`state_dir` is the node's own: it holds, or names, all its sandboxes. Images are pulled from
    `mirrors` first."""
    backends = Backends({}, state_dir, mirrors)
    places = [BackendPlace(name, _state_dir_of(name, state_dir), mirrors) for name in names]
    probed = await asyncio.gather(*map(_probe, places))
    return backends.with_backends(dict(zip((place.name for place in places), probed, strict=True)))


def _state_dir_of(name: str, state_dir: Path) -> Path:
    """Each class of your own has a directory, so that no two list each other's sandboxes."""
    if name in BACKENDS:
        return state_dir
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return state_dir.with_name(f"{state_dir.name}-{digest}")


async def _probe(place: BackendPlace) -> Found:
    try:
        BACKENDS.check(place.name)
        backend = await asyncio.to_thread(BACKENDS.find(place.name), place)
        if backend.name != place.name:
            return BackendUnavailable(
                f"sandbox backend {place.name!r} calls itself {backend.name!r}",
                remedy="set `self.name = place.name` where it is made: leases hold this name",
            )
        await backend.probe()
    except BackendUnavailable as unavailable:
        return unavailable
    except ConfigError as error:
        return BackendUnavailable(error.message, remedy=error.remedy)
    return backend
