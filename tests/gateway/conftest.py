"""The application in this process, with a script behind it; sandboxes for installed clients."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from scripted_answers import KEY, Script

from gateway.app import make_app
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable


@pytest.fixture
async def script() -> Script:
    return Script()


@pytest.fixture
async def client(script: Script) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(script))
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://gateway", headers=headers
    ) as client:
        yield client


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[BwrapBackend]:
    backend = BwrapBackend(tmp_path)
    try:
        await backend.probe()
    except BackendUnavailable as unavailable:
        pytest.skip(str(unavailable))
    yield backend
    for left in await backend.list_open():
        await backend.remove(left)
