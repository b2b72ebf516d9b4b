"""The right backend for a task, and why there is none."""

import pytest

from infra.sandbox.backends import available_backends, choose_backend
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from mainspring.tasks.task import BackendName


@pytest.fixture
async def without_docker(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody-listens.sock")
    return await available_backends(tmp_path)


async def test_bubblewrap_for_tasks_without_an_image(without_docker):
    backend = choose_backend(None, without_docker)
    assert isinstance(backend, BwrapBackend) and backend.name == BackendName.BWRAP


async def test_an_image_without_a_daemon_names_both(without_docker):
    with pytest.raises(BackendUnavailable, match=r"image swe/x:1 .*Docker daemon") as refused:
        choose_backend("swe/x:1", without_docker)
    assert "DOCKER_HOST" in refused.value.remedy


async def test_a_daemon_that_hangs_is_given_up_on(tmp_path, monkeypatch):
    import asyncio
    import time

    hanging = await asyncio.start_unix_server(
        lambda reader, writer: asyncio.sleep(60), tmp_path / "hanging.sock"
    )
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/hanging.sock")
    started = time.monotonic()
    found = await available_backends(tmp_path)
    assert isinstance(found[BackendName.DOCKER], BackendUnavailable)
    assert time.monotonic() - started < 10
    hanging.close()


def test_neither_says_what_is_missing():
    reason = BackendUnavailable("no user namespaces", remedy="sysctl user.max_user_namespaces")
    none = dict.fromkeys(BackendName, reason)
    with pytest.raises(BackendUnavailable, match="bubblewrap: no user namespaces") as refused:
        choose_backend(None, none)
    assert "sysctl" in refused.value.remedy
