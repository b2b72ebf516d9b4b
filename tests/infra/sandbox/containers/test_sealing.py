"""What the agent finds of an image's git history: all before HEAD, nothing beyond it."""

import asyncio
import dataclasses
import io
import tarfile
from collections.abc import AsyncIterator, Iterator

import docker
import pytest
from docker.errors import ImageNotFound, NotFound
from sandbox_backend import cleared, make_backend, output

from infra.environments.grader import for_grading, judge
from infra.environments.swe import sandbox_spec
from infra.sandbox.archive import tar_of
from infra.sandbox.containers.docker import DockerBackend
from infra.sandbox.containers.image_edit import Alteration
from infra.sandbox.containers.image_history import (
    OF_ONE_TASK,
    SEALED,
    TRIES,
    altered_images,
    seals_of,
)
from infra.sandbox.protocol import ImageUnfit, SandboxSpec
from infra.sources.patch_files import reversed_patch
from mainspring.config.sandbox import SandboxConfig
from mainspring.errors import SandboxError
from mainspring.ids import SandboxId, TaskId
from mainspring.status import FaultKind, Verdict
from mainspring.tasks.swe_task import SweTask
from tests.docker_image import base_image

pytestmark = pytest.mark.docker

PAST = """
git init -q -b main; git config user.name a; git config user.email b
echo one >a; git add .; git commit -qm one; git tag -a v1 -m 'release 1'
echo two >a; git commit -qam two; git tag v2
echo staged >staged; git add staged
"""
FUTURE = """
git switch -qc next; echo zebra >a; git commit -qam 'wombat'; git tag -a v3 -m 'release 3'
git update-ref refs/remotes/origin/main HEAD; git branch topic
echo numbat >a; git stash -q
git remote add origin https://example.org/x.git; echo deadbeef >.git/FETCH_HEAD
git switch -q main
echo axolotl >a; git commit -qam 'platypus here'; git reset -q --hard v2; git commit-graph write
echo quokka | git hash-object -w --stdin >/dev/null
touch .git/objects/pack/x.keep
echo staged >staged; git add staged
"""
PACKED = FUTURE.replace("echo axolotl", "git repack -adq; echo axolotl")
PREFIX = "mainspring-history-"
TOLD = """
git commit -qam platypus; git reset -q --soft v2; cp .git/logs/HEAD /log
git reflog expire --expire=now --all; git gc -q --prune=now; cp /log .git/logs/HEAD
"""
IMAGES = {"clean": PAST, "dirty": PAST + FUTURE, "packed": PAST + PACKED, "told": PAST + TOLD}


def build(client: docker.DockerClient, name: str, recipe: str, script: str = "") -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for path, text in {"Dockerfile": recipe, "make.sh": script}.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    context.seek(0)
    client.images.build(
        fileobj=context, custom_context=True, tag=PREFIX + name, network_mode="none", rm=True
    )


def recipe(more: str = "") -> str:
    return (
        f"FROM {base_image()}\nCOPY make.sh /\n{more}\n"
        "RUN mkdir -p /testbed && cd /testbed && bash -e /make.sh\n"
    )


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    base_image()
    client = docker.from_env(timeout=60)
    for name, script in IMAGES.items():
        build(client, name, recipe(), script)
    yield client
    client.close()


@pytest.fixture(scope="module")
async def backend(client, tmp_path_factory) -> AsyncIterator[DockerBackend]:
    backend = make_backend("docker", tmp_path_factory.mktemp("sealing"))
    assert isinstance(backend, DockerBackend)
    async with cleared(backend):
        yield backend


def spec(id: str, image: str) -> SandboxSpec:
    return SandboxSpec(SandboxId(id), "/testbed", image=PREFIX + image)


def num_containers(client: docker.DockerClient) -> int:
    """Of this file's images: tests beside it use the same daemon."""
    images = {
        image["Id"]
        for image in client.api.images()
        if any(tag.startswith((PREFIX, SEALED, OF_ONE_TASK)) for tag in image["RepoTags"] or ())
    }
    return sum(each["ImageID"] in images for each in client.api.containers(all=True))


@pytest.mark.parametrize("image", IMAGES)
async def test_history_ends_with_head(client, backend, image):
    before = num_containers(client)
    sandbox, other = await asyncio.gather(*(backend.open(spec(id, image)) for id in ("a", "b")))
    try:
        assert num_containers(client) == before + 2
        objects = await output(
            sandbox, "git cat-file --batch-all-objects --batch; cat $(find .git -type f -size -99k)"
        )
        for secret in (b"wombat", b"zebra", b"axolotl", b"platypus", b"numbat", b"quokka"):
            assert secret not in objects
        known = await output(sandbox, "git log --all --reflog --format=%s; git tag; git remote")
        assert known == b"two\none\nv1\nv2\n"
        described = await output(sandbox, "git describe --tags; git describe")
        assert described.startswith(b"v2\nv1-1-g")
        assert await output(sandbox, "git status --porcelain; cat a; git show HEAD~:a") == (
            b"A  staged\ntwo\none\n"
        )
        head = client.containers.run(
            spec("x", image).image,
            ["git", "-C", "/testbed", "rev-parse", "HEAD"],
            remove=True,
            network_mode="none",
        )
        assert await output(sandbox, "git fsck --full 2>&1; git rev-parse HEAD") == head
        assert await sandbox.diff() == b""
    finally:
        await asyncio.gather(sandbox.close(), other.close())


async def test_a_rewritten_image_is_made_once_and_goes_with_its_original(client, backend, tmp_path):
    build(client, "gone", recipe("RUN echo another >/another"), PAST + FUTURE)
    gone = client.images.get(f"{PREFIX}gone")
    await (await backend.open(spec("c", "gone"))).close()
    made = seals_of(client, str(gone.id))
    assert len(made) == 1 and client.images.get(made[0]).id != gone.id
    again = make_backend("docker", tmp_path)
    await (await again.open(spec("d", "gone"))).close()
    assert seals_of(client, str(gone.id)) == made
    # As the collection does, for an image that can be pulled again.
    assert backend.images._remove(f"{PREFIX}gone", True)
    assert seals_of(client, str(gone.id)) == []
    with pytest.raises(ImageNotFound):
        client.images.get(made[0])


BUG = """diff --git a/pkg/it.py b/pkg/it.py
--- a/pkg/it.py
+++ b/pkg/it.py
@@ -1 +1 @@
-right = 1
+wrong = 2
"""
REPOSITORY = (
    PAST
    + """
mkdir pkg pkg/__pycache__ hidden; echo right = 1 >pkg/it.py; echo secret >hidden/t.py
touch pkg/__pycache__/{it,other}.cpython-39.pyc; echo '*.pyc' >.gitignore
git add .; git commit -qm right; mkdir /elsewhere; echo secret >/elsewhere/t.py
git config --system safe.directory '*'; chown -R 1000 .
"""
)


async def test_an_altered_image_has_the_bug_and_not_its_story(client, backend, monkeypatch):
    build(client, "fixed", recipe() + "USER 1000\n", REPOSITORY)
    plain = spec("plain", "fixed")
    absent = ("hidden", "/elsewhere", "nothing")
    altered = dataclasses.replace(plain, alteration=Alteration(BUG, absent))
    graded = dataclasses.replace(plain, alteration=Alteration(BUG))
    heads = set()
    for id, what, seen in (
        ("altered", altered, b"wrong = 2\npkg/it.py\n"),
        ("graded", graded, b"wrong = 2\n/elsewhere/t.py\nhidden/t.py\npkg/it.py\n"),
        ("plain", plain, b"right = 1\n/elsewhere/t.py\nhidden/t.py\npkg/it.py\n"),
    ):
        sandbox = await backend.open(dataclasses.replace(what, id=SandboxId(id)))
        try:
            listed = "cat pkg/it.py; ls -1 /elsewhere/*.py hidden/*.py pkg/*.py 2>/dev/null; true"
            assert await output(sandbox, listed) == seen
            assert await output(sandbox, "git status --porcelain; git fsck --full 2>&1") == b""
            assert await sandbox.diff() == b""
            log = await output(
                sandbox, "git log --all --reflog --format=%s; git tag; ! ls /*.patch"
            )
            objects = await output(sandbox, "git cat-file --batch-all-objects --batch")
            compiled = await output(sandbox, "ls pkg/__pycache__")
            if what is plain:
                assert b"release 1" in objects and b"\nv1\n" in log
                assert compiled == b"it.cpython-39.pyc\nother.cpython-39.pyc\n"
                continue
            assert b"right" not in objects and (b"secret" in objects) is (what is graded)
            assert log.startswith(b"base\n") and b"v1" not in log
            assert compiled == b"other.cpython-39.pyc\n"
            assert await output(sandbox, "find . ! -uid 1000") == b""
            heads.add((what.alteration, await output(sandbox, "git rev-parse HEAD")))
        finally:
            await sandbox.close()
    assert len(heads) == 2
    # On a full disk they go, and are made again: the same, on this node as on another.
    used = await backend.open(graded)
    with monkeypatch.context() as full:
        full.setattr(backend.images, "_free_mb", lambda: 0)
        assert await backend.images.collect(1) == []
    image = str(client.images.get(f"{PREFIX}fixed").id)
    assert len(set(seals_of(client, image)) & set(altered_images(client))) == 1
    await used.close()
    sandbox = await backend.open(altered)
    assert (altered.alteration, await output(sandbox, "git rev-parse HEAD")) in heads
    await sandbox.close()


async def test_the_agent_gets_the_bug_and_grading_the_hidden_tests(client, backend):
    build(client, "fixed", recipe() + "USER 1000\n", REPOSITORY)
    task = SweTask(
        id=TaskId("it__it.1"),
        source="smith",
        split="train",
        issue="it is wrong",
        image=f"{PREFIX}fixed",
        base_patch=BUG,
        hidden_files=("hidden/t.py",),
        gold_patch=reversed_patch(BUG),
        test_command="grep -q secret hidden/t.py && ! [[ -e sneaked ]] && grep right pkg/it.py",
    )
    plain = sandbox_spec(SandboxId("agent"), task, SandboxConfig(), {})
    agent = await backend.open(plain)
    assert b"hidden" not in await output(agent, "git ls-files; ls; git log --stat")
    await output(agent, "echo 'right = 1' >pkg/it.py; mkdir hidden; echo mine >hidden/t.py")
    patch = await agent.diff()
    await agent.close()
    assert task.gold_patch and task.gold_patch.encode() != patch
    for given, verdict, dropped in (
        (patch, Verdict.RESOLVED, ("hidden/t.py",)),
        (task.gold_patch.encode(), Verdict.RESOLVED, ()),
        (b"", Verdict.NOT_RESOLVED, ()),
    ):
        fresh = await backend.open(for_grading(plain, task))
        judged = await judge(fresh, task, given, run_empty=True)
        assert (judged.verdict, judged.report.dropped_paths) == (verdict, dropped)
        await fresh.close()


@pytest.mark.parametrize(
    ("image", "reason"), [("clean", "pkg/it.py: does not exist"), ("bare", "not a git repository")]
)
async def test_an_image_that_cannot_be_altered_is_unfit(client, backend, image, reason):
    if image == "bare":
        build(client, "bare", recipe(), "echo >file")
    before = num_containers(client)
    wanted = dataclasses.replace(spec("wrong", image), alteration=Alteration(BUG))
    with pytest.raises(ImageUnfit, match=reason):
        await backend.open(wanted)
    assert num_containers(client) == before


async def test_history_that_cannot_be_cut_makes_the_image_unfit(client, backend):
    build(client, "volume", f"FROM {PREFIX}dirty\nVOLUME /testbed\n")
    with pytest.raises(ImageUnfit, match="cannot be cut"):
        await backend.open(spec("v", "volume"))


SLOW_GIT = """#!/bin/sh
# Where history is looked at, and only there, it waits until the test lets it, a minute at most.
case "$*" in *--batch-check*) for n in $(seq 600); do [ -e /go ] && break; sleep 0.1; done ;; esac
exec /usr/bin/git "$@"
"""


@pytest.mark.parametrize("kills", [1, TRIES])
async def test_a_look_that_is_killed_is_tried_again_and_never_the_tasks_fault(
    client, tmp_path, kills
):
    # Of its own: what is sealed already is not looked at.
    build(
        client,
        f"slow{kills}",
        recipe(f"RUN echo {kills} >/which"),
        f"{PAST}{FUTURE}mkdir -p /usr/local/bin; cat >/usr/local/bin/git <<'end'\n{SLOW_GIT}end\n"
        "chmod 755 /usr/local/bin/git\n",
    )
    image = client.images.get(f"{PREFIX}slow{kills}")
    for name in seals_of(client, str(image.id)):
        client.images.remove(name)
    before = num_containers(client)
    killed: list[str] = []
    looks = client.events(
        decode=True,
        filters={"event": "exec_start", "type": "container", "image": f"{PREFIX}slow{kills}"},
    )

    def meet() -> None:
        for look in looks:
            try:
                container = client.containers.get(look["id"])
                if len(killed) < kills:
                    container.kill()
                    killed.append(look["id"])
                else:
                    container.put_archive("/", tar_of({"go": b""}, 0o644))
            except NotFound:  # a second command of a look that was killed by the first
                continue

    backend = make_backend("docker", tmp_path)
    async with cleared(backend):
        meeting = asyncio.create_task(asyncio.to_thread(meet))
        try:
            if kills < TRIES:
                sandbox = await backend.open(spec("k", f"slow{kills}"))
                assert await output(sandbox, "git log --all --format=%s") == b"two\none\n"
                await sandbox.close()
            else:
                with pytest.raises(SandboxError, match="killed") as fault:
                    await backend.open(spec("k", f"slow{kills}"))
                assert fault.value.fault is FaultKind.NODE_FAILED
        finally:
            looks.close()
            await meeting
    assert len(killed) == kills
    assert num_containers(client) == before
