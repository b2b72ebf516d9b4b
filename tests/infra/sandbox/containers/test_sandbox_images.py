"""Which images a node says it has."""

import io
import tarfile
import uuid
from collections.abc import Iterator

import docker
import pytest
from docker.errors import DockerException

from infra.sandbox.containers.images import present_images


@pytest.fixture
def image() -> Iterator[str]:
    """An empty image, made without a registry."""
    try:
        client = docker.from_env(timeout=30)
    except DockerException as error:
        pytest.skip(f"no Docker daemon answers: {error}")
    archive = io.BytesIO()
    tarfile.open(fileobj=archive, mode="w").close()
    repository = f"mainspring-images-{uuid.uuid4().hex[:8]}"
    client.api.import_image_from_data(archive.getvalue(), repository=repository, tag="1")
    name = f"{repository}:1"
    yield name
    if client.images.list(repository):
        client.images.remove(name)
    client.close()


@pytest.mark.docker
def test_an_image_is_present_under_its_tag_until_it_is_removed(image: str) -> None:
    found = present_images()
    assert image in found
    assert found == sorted(found)
    docker.from_env().images.remove(image)
    assert image not in present_images()


def test_without_a_daemon_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert present_images() == []
