"""Every sandbox backend that runs here, and sandboxes in it."""

import pytest
from sandbox_backend import build_image, cleared, make_backend, make_spec

from mainspring.tasks.sandbox_choice import DOCKER


@pytest.fixture(scope="module", params=["bwrap", pytest.param("docker", marks=pytest.mark.docker)])
async def backend(request, tmp_path_factory):
    if request.param == DOCKER:
        build_image()
    backend = make_backend(request.param, tmp_path_factory.mktemp("sandboxes"))
    async with cleared(backend):
        yield backend


@pytest.fixture(scope="module")
async def shared(backend):
    """For tests that leave no trace in the sandbox."""
    sandbox = await backend.open(make_spec(backend.name, "shared"))
    yield sandbox
    await sandbox.close()


@pytest.fixture
async def fresh(backend, request):
    sandbox = await backend.open(make_spec(backend.name, request.node.name))
    yield sandbox
    await sandbox.close()
