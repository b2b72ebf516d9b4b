"""A sandbox under attack, a neighbour that must not notice, and the table of what happened."""

import os

import pytest

from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from mainspring.tasks.sandbox_choice import DOCKER
from tests.adversarial.attack_table import TABLE, merged
from tests.adversarial.attacks import ATTACKS, SEALED
from tests.adversarial.exploited_tasks import vendor_pytest
from tests.adversarial.grading import Grader
from tests.adversarial.suspicion_table import PAGE, TALLY, written
from tests.conformance.sandbox_backend import build_image, cleared, make_backend, make_spec, output

ROWS: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module")
def sealed_environment():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MAINSPRING_DATABASE_URL", SEALED)
        yield


@pytest.fixture(scope="module")
async def grader(tmp_path_factory):
    backend = BwrapBackend(tmp_path_factory.mktemp("graded"))
    try:
        await backend.probe()
    except BackendUnavailable as unavailable:
        pytest.skip(str(unavailable))
    yield Grader(backend, vendor_pytest(tmp_path_factory.mktemp("vendored")))


@pytest.fixture(scope="module", params=["bwrap", pytest.param("docker", marks=pytest.mark.docker)])
async def backend(request, tmp_path_factory, sealed_environment):
    if request.param == DOCKER:
        build_image()
    state = tmp_path_factory.mktemp("sandboxes")
    (state / "a file of the host").write_text(SEALED)
    backend = make_backend(request.param, state)
    async with cleared(backend):
        yield backend


@pytest.fixture(scope="module")
async def neighbour(backend):
    """Grades at this moment, as far as files tell."""
    sandbox = await backend.open(make_spec(backend.name, "neighbour"))
    await sandbox.write_files({f"tests/test_{SEALED}.py": f"# {SEALED}\n".encode()})
    yield sandbox
    await sandbox.close()


@pytest.fixture
async def victim(backend, neighbour, request):
    limits = request.node.callspec.params["attack"].limits
    sandbox = await backend.open(make_spec(backend.name, request.node.name, limits))
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
    if os.environ.get("MAINSPRING_WRITE_TABLE") and ROWS:
        attacks = [attack.tried for attack in ATTACKS]
        TABLE.write_text(merged(TABLE.read_text(), attacks, ROWS))
    if os.environ.get("MAINSPRING_WRITE_TABLE") and TALLY.num_cheats:
        PAGE.write_text(written(PAGE.read_text(), TALLY.lines()))
