"""Task images: one pull for all who ask, mirrors, a registry's faults, and what goes when the disk
is full. Against a real daemon and a real registry, with faults put between the two."""

import asyncio
import dataclasses
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import APIError

from infra.sandbox.containers.image_faults import start_fault, text_of
from infra.sandbox.containers.image_names import ImageName
from infra.sandbox.containers.image_pull import NUM_AT_ONCE
from infra.sandbox.containers.image_record import ImageRecord
from infra.sandbox.containers.images import MIN_IDLE_S, ImageStore
from infra.sandbox.protocol import (
    BackendUnavailable,
    ImageDenied,
    ImageUnfit,
    ImageUnknown,
    ImageUnreachable,
)
from tests.image_registry import (
    Front,
    docker_client,
    make_image,
    new_name,
    push,
    remove_images,
    running_front,
    running_registry,
)
from tests.waiting import until

UNREACHABLE = "127.0.0.1:1"
NEVER_ENOUGH_MB = 1 << 40


async def test_no_daemon_is_nobodys_task(tmp_path: Path) -> None:
    client = docker.DockerClient(base_url=f"unix://{tmp_path}/docker.sock", version="1.41")
    with pytest.raises(BackendUnavailable, match="no Docker daemon"):
        await ImageStore(client, tmp_path).ensure("x")


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = docker_client()
    yield client
    remove_images(client)
    client.close()


@pytest.fixture(scope="module")
def server(
    client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("registry")
    with running_registry(folder) as registry, running_front(registry) as front:
        yield front


@pytest.fixture
def front(server: Front) -> Front:
    server.reset()
    return server


@pytest.fixture
def store(client: docker.DockerClient, tmp_path: Path) -> ImageStore:
    return ImageStore(client, tmp_path, backoff_s=0.01)


def pushed(client: docker.DockerClient, front: Front, folder: str = "team") -> str:
    """A new image that only the registry has."""
    path = f"{folder}/{new_name()}:1"
    push(client, front.registry, path)
    return f"{front.address}/{path}"


def names_here(client: docker.DockerClient, part: str) -> list[str]:
    # Not `client.images.list`: it inspects each image, and other tests remove theirs meanwhile.
    listed = client.api.images()
    return [tag for each in listed for tag in each["RepoTags"] or () if part in tag]


@pytest.mark.docker
async def test_an_image_is_pulled_once_for_all_who_ask(
    client: docker.DockerClient, front: Front, store: ImageStore
) -> None:
    alone, asked_by_many = pushed(client, front), pushed(client, front)
    seen: list[tuple[int, int]] = []
    assert await store.ensure(alone, lambda *here: seen.append(here)) == alone
    assert seen[-1][0] == seen[-1][1] >= 200_000
    front.asked.clear()
    await asyncio.gather(*(store.ensure(asked_by_many) for _ in range(12)))
    num_requests = len(front.asked)
    # one pull may ask twice: by tag and by digest
    assert num_requests == len(set(front.asked)) > 0
    await store.ensure(asked_by_many)
    assert len(front.asked) == num_requests, "present: nobody is asked"
    assert all((await store.sizes([alone, asked_by_many])).values())
    missing = f"{front.address}/team/missing:1"
    sizes = await store.sizes([alone, missing])
    assert sizes[missing] is None and (sizes[alone] or 0) >= 200_000


@pytest.mark.docker
async def test_so_many_pulls_at_once_and_no_more(
    client: docker.DockerClient, front: Front, store: ImageStore
) -> None:
    images = [pushed(client, front) for _ in range(NUM_AT_ONCE + 2)]
    front.open.clear()
    pulls = asyncio.gather(*map(store.ensure, images))
    await until(lambda: front.num_waiting == NUM_AT_ONCE)
    await asyncio.sleep(0.3)
    assert front.max_waiting == NUM_AT_ONCE
    front.open.set()
    assert await pulls == images


@pytest.mark.docker
async def test_a_pull_goes_on_when_who_asked_has_gone(
    client: docker.DockerClient, front: Front, store: ImageStore, tmp_path: Path
) -> None:
    image = pushed(client, front)
    front.open.clear()
    asking = asyncio.create_task(store.ensure(image))
    await until(lambda: front.num_waiting == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    front.open.set()
    await until(lambda: ImageRecord(tmp_path).read()[image].pulled)
    assert names_here(client, image) == [image]
    num_requests = len(front.asked)
    await store.ensure(image)
    assert len(front.asked) == num_requests


@pytest.mark.docker
async def test_a_registry_that_hiccups_is_asked_again(
    client: docker.DockerClient, front: Front, store: ImageStore
) -> None:
    image = pushed(client, front)
    front.num_unavailable = 4
    assert await store.ensure(image) == image
    assert front.num_unavailable == 0


@pytest.mark.docker
async def test_a_registry_that_stays_away_is_no_verdict(
    client: docker.DockerClient, front: Front, store: ImageStore
) -> None:
    image = pushed(client, front)
    front.num_unavailable = 1000
    results = await asyncio.gather(*(store.ensure(image) for _ in range(3)), return_exceptions=True)
    assert {type(result) for result in results} == {ImageUnreachable}
    assert image in str(results[0]) and "503" in str(results[0])
    assert 5 <= 1000 - front.num_unavailable <= 20, "five tries, not per asker"
    front.reset()
    assert await store.ensure(image) == image


@pytest.mark.docker
@pytest.mark.parametrize(
    ("path", "fault", "remedy"),
    [
        ("team/missing:1", ImageUnknown, "check the name"),
        ("denied/x:1", ImageDenied, "docker login 127"),
        ("alien/x:1", ImageUnfit, "nodes it is made for"),
    ],
)
async def test_a_registrys_no_is_taken_for_one(
    front: Front, store: ImageStore, path: str, fault: type[Exception], remedy: str
) -> None:
    image = f"{front.address}/{path}"
    with pytest.raises(fault) as refused:
        await store.ensure(image)
    assert image in str(refused.value) and remedy in str(refused.value)
    assert len(front.asked) <= 2, "asked once; Docker fetches a manifest at most twice"


@pytest.mark.docker
async def test_a_mirror_is_asked_first_and_its_name_goes(
    client: docker.DockerClient, front: Front, tmp_path: Path
) -> None:
    name = f"{new_name()}:1"
    digest = push(client, front.registry, f"hub/library/{name}")
    store = ImageStore(
        client,
        tmp_path,
        (UNREACHABLE, f"{front.address}/none", f"{front.address}/hub"),
        backoff_s=0.01,
    )
    assert await store.ensure(f"docker.io/library/{name}") == f"docker.io/library/{name}"
    assert names_here(client, name) == [name]
    # by digest there is no other name to give
    by_digest = f"{name.removesuffix(':1')}@{digest}"
    found = await store.ensure(by_digest)
    assert found == f"{front.address}/hub/library/{by_digest}"
    assert await store.ensure(by_digest) == found
    assert client.images.get(found).id == client.images.get(name).id
    assert (await store.sizes([by_digest]))[by_digest]


@pytest.mark.docker
async def test_a_mirrors_name_that_was_there_before_stays(
    client: docker.DockerClient, front: Front, tmp_path: Path
) -> None:
    name = f"{new_name()}:1"
    push(client, front.registry, f"hub/library/{name}")
    theirs = f"{front.address}/hub/library/{name}"
    client.images.pull(theirs)
    await ImageStore(client, tmp_path, [f"{front.address}/hub"]).ensure(name)
    assert sorted(names_here(client, name)) == sorted([name, theirs])


@pytest.mark.docker
async def test_the_images_own_registry_has_the_last_word(
    client: docker.DockerClient, front: Front, tmp_path: Path
) -> None:
    mirrors = [f"{front.address}/denied"]
    image = pushed(client, front)
    assert await ImageStore(client, tmp_path, mirrors).ensure(image) == image
    missing = f"{front.address}/team/missing:1"
    with pytest.raises(ImageUnknown, match="denied"):
        await ImageStore(client, tmp_path, mirrors).ensure(missing)
    # a mirror that is down may be the one that has it
    with pytest.raises(ImageUnreachable, match="refused"):
        await ImageStore(client, tmp_path, [UNREACHABLE], backoff_s=0.01).ensure(missing)


@pytest.mark.docker
async def test_under_pressure_only_idle_images_of_tasks_go(
    client: docker.DockerClient, front: Front, store: ImageStore, tmp_path: Path
) -> None:
    names = ("oldest", "idle", "stopped", "named", "recent")
    images = {name: pushed(client, front, name) for name in names}
    for image in images.values():
        await store.ensure(image)
    images["local"] = f"{new_name()}:1"  # no registry has it
    make_image(client, images["local"])
    await store.ensure(images["local"])
    strangers = pushed(client, front)
    client.images.pull(strangers)
    container = client.containers.create(images["stopped"], "x", network_mode="none")
    try:
        age(tmp_path, dict.fromkeys(images.values(), MIN_IDLE_S + 60))
        age(tmp_path, {images["recent"]: MIN_IDLE_S - 60, images["oldest"]: MIN_IDLE_S + 90})
        after_restart = ImageStore(client, tmp_path)
        assert await after_restart.collect(0) == []
        gone = await after_restart.collect(NEVER_ENOUGH_MB, {images["named"]})
        assert gone == [images["oldest"], images["idle"]]
        sizes = await store.sizes([*images.values(), strangers])
        assert {image for image, size in sizes.items() if size is None} == set(gone)
        assert await store.ensure(images["idle"]) == images["idle"], "it can be had again"
    finally:
        container.remove(force=True)


@pytest.mark.docker
async def test_collecting_stops_when_there_is_room(
    client: docker.DockerClient,
    front: Front,
    store: ImageStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = [pushed(client, front) for _ in range(3)]
    for image in images:
        await store.ensure(image)
    age(tmp_path, {image: MIN_IDLE_S + 100 - i for i, image in enumerate(images)})
    real = shutil.disk_usage(client.info()["DockerRootDir"])

    def usage(path: str) -> object:
        here = {tag for each in client.api.images() for tag in each["RepoTags"] or ()}
        return real._replace(free=(3000 if len(here & {*images}) == 1 else 1) << 20)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert await ImageStore(client, tmp_path).collect(2048) == images[:2]


@pytest.mark.docker
async def test_an_image_asked_for_while_others_go_stays(
    client: docker.DockerClient, front: Front, store: ImageStore, tmp_path: Path
) -> None:
    images = [pushed(client, front) for _ in range(4)]
    for image in images:
        await store.ensure(image)
    age(tmp_path, dict.fromkeys(images, MIN_IDLE_S + 60))
    store = ImageStore(client, tmp_path)
    collecting = asyncio.create_task(store.collect(NEVER_ENOUGH_MB))
    await asyncio.gather(*(store.ensure(image) for image in images))
    await collecting
    assert None not in (await store.sizes(images)).values()


@pytest.mark.docker
def test_an_image_without_bash_is_unfit(client: docker.DockerClient) -> None:
    name = f"{new_name()}:1"
    make_image(client, name)
    container = client.containers.create(name, [], entrypoint=["bash", "-l"], network_mode="none")
    try:
        with pytest.raises(APIError) as failed:
            container.start()
    finally:
        container.remove(force=True)
    assert type(start_fault(name, text_of(failed.value))) is ImageUnfit


def age(state_dir: Path, ages_s: dict[str, float]) -> None:
    """Let the record say that the images were last used so long ago."""
    uses = ImageRecord(state_dir).read()
    for image, age_s in ages_s.items():
        name = str(ImageName.parse(image))
        uses[name] = dataclasses.replace(uses[name], used_at=time.time() - age_s)
    stored = {image: dataclasses.asdict(use) for image, use in uses.items()}
    (state_dir / "images.json").write_text(json.dumps(stored))
