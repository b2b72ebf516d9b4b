"""The application in this process, with a script behind it."""

from collections.abc import AsyncIterator

import httpx
import pytest
from scripted_answers import KEY, Script

from gateway.app import make_app


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
