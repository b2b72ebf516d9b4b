"""The right backend for a task, and why there is none."""

import asyncio

import pytest

from infra.sandbox.backends import BACKENDS, Backends, available_backends
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable, SandboxSpec
from mainspring.errors import ConfigError, UsageError
from mainspring.ids import SandboxId
from mainspring.tasks.sandbox_choice import BWRAP, DOCKER


@pytest.fixture
async def without_docker(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody-listens.sock")
    return await available_backends(tmp_path)


async def test_bubblewrap_for_tasks_without_an_image(without_docker):
    backend = await without_docker.choose(None, None)
    assert isinstance(backend, BwrapBackend) and backend.name == BWRAP


async def test_an_image_without_a_daemon_names_both(without_docker):
    with pytest.raises(BackendUnavailable, match=r"image swe/x:1 .*Docker daemon") as refused:
        await without_docker.choose(None, "swe/x:1")
    assert "DOCKER_HOST" in refused.value.remedy


async def test_a_daemon_that_hangs_is_given_up_on(tmp_path, monkeypatch):
    import time

    hanging = await asyncio.start_unix_server(
        lambda reader, writer: asyncio.sleep(60), tmp_path / "hanging.sock"
    )
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/hanging.sock")
    started = time.monotonic()
    found = await available_backends(tmp_path)
    assert isinstance(found[DOCKER], BackendUnavailable)
    assert time.monotonic() - started < 10
    hanging.close()


async def test_neither_says_what_is_missing():
    reason = BackendUnavailable("no user namespaces", remedy="sysctl user.max_user_namespaces")
    none = Backends(dict.fromkeys(BACKENDS, reason))
    with pytest.raises(BackendUnavailable, match="bubblewrap: no user namespaces") as refused:
        await none.choose(None, None)
    assert "sysctl" in refused.value.remedy


async def test_a_configured_backend_is_taken_whatever_the_image(without_docker):
    backend = await without_docker.choose(BWRAP, "swe/x:1")
    assert isinstance(backend, BwrapBackend)
    with pytest.raises(BackendUnavailable, match=r"sandbox\.backend 'docker' .*Docker daemon"):
        await without_docker.choose(DOCKER, None)


class Halfway:
    def open(self):
        return None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("podman", "no sandbox backend is called 'podman'"),
        ("no_such_module:Backend", "cannot be imported: ModuleNotFoundError"),
        (f"{__name__}:Halfway", "lacks probe, attach, rename, list_open, remove"),
        (f"{__name__}:__name__", "is a str, expected a class"),
    ],
)
async def test_a_backend_that_is_none_is_refused_by_name(name, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as refused:
        BACKENDS.check(name)
    assert isinstance(refused.value, UsageError)  # exit code 2
    backends = Backends({}, tmp_path / "sandboxes")
    with pytest.raises(BackendUnavailable, match=f"sandbox.backend '{name}' cannot run here: .*"):
        await backends.choose(name, None)
    if name == "podman":
        assert "docker, bwrap" in refused.value.remedy


class WrongName(BwrapBackend):
    def __init__(self, place):
        super().__init__(place.state_dir)


async def test_a_backend_under_another_name_is_refused(tmp_path):
    name = f"{__name__}:WrongName"
    BACKENDS.check(name)
    backends = Backends({}, tmp_path / "sandboxes")
    with pytest.raises(BackendUnavailable, match="calls itself 'bwrap'"):
        await backends.choose(name, None)
    assert not backends.working()


class Own(BwrapBackend):
    def __init__(self, place):
        super().__init__(place.state_dir)
        self.name = place.name


async def test_an_own_backend_is_made_once_with_a_directory_of_its_own(tmp_path):
    name = f"{__name__}:Own"
    backends = await available_backends(tmp_path / "sandboxes")
    if isinstance(backends[BWRAP], BackendUnavailable):
        pytest.skip(str(backends[BWRAP]))
    first, second = await asyncio.gather(backends.choose(name, None), backends.choose(name, "x"))
    assert isinstance(first, Own) and first is second
    await first.open(SandboxSpec(SandboxId("one"), "/testbed"))
    assert await first.list_open() == ["one"]
    assert await (await backends.choose(None, None)).list_open() == []
    await first.remove(SandboxId("one"))
