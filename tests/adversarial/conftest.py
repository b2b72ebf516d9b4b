"""A sandbox under attack, a neighbour that must not notice, and the table of what happened."""

import os
from pathlib import Path

import pytest

from infra.sandbox.protocol import BackendUnavailable
from mainspring.tasks import BackendName
from tests.conformance.sandbox_backend import build_image, make_backend, make_spec, output

TABLE = Path(__file__).parents[2] / "docs" / "sandbox-security.md"
ROWS: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module", params=["bwrap", pytest.param("docker", marks=pytest.mark.docker)])
async def backend(request, tmp_path_factory):
    if request.param == BackendName.DOCKER:
        build_image()
    backend = make_backend(request.param, tmp_path_factory.mktemp("sandboxes"))
    try:
        await backend.probe()
    except BackendUnavailable as unavailable:
        pytest.skip(str(unavailable))
    yield backend
    for left in await backend.list_open():
        await backend.remove(left)


@pytest.fixture(scope="module")
async def neighbour(backend):
    sandbox = await backend.open(make_spec(backend.name, "neighbour"))
    yield sandbox
    await sandbox.close()


@pytest.fixture
async def victim(backend, neighbour, request):
    sandbox = await backend.open(make_spec(backend.name, request.node.name))
    yield sandbox
    await sandbox.close()
    assert await output(neighbour, "echo alive") == b"alive\n"


@pytest.fixture
def happened(backend, request):
    """Records one line for the table, under the attack's name."""

    def record(text: str) -> None:
        ROWS[request.node.callspec.params["attack"].tried, backend.name] = text

    return record


def pytest_sessionfinish():
    if not os.environ.get("MAINSPRING_WRITE_TABLE") or not ROWS:
        return
    names = list(BackendName)
    lines = ["# What was tried against the sandboxes", ""]
    lines += ["Written by `MAINSPRING_WRITE_TABLE=1 python -m pytest tests/adversarial`.", ""]
    lines += [f"| tried | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for tried in dict.fromkeys(tried for tried, _ in ROWS):
        cells = [ROWS.get((tried, name), "not run") for name in names]
        lines.append(f"| {tried} | {' | '.join(cells)} |")
    TABLE.write_text("\n".join(lines) + "\n")
