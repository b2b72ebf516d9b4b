"""What every backend promises of snapshots, tried on each: all files come back, or none is made."""

import io
import signal
from contextlib import closing
from dataclasses import replace

import docker
import pytest
from sandbox_backend import IMAGE, WORKDIR, make_backend, make_spec, output, run
from test_sandbox_lifecycle import DIE, owner_of_a_sandbox

from infra.sandbox.protocol import Sandbox, SnapshotUnfit
from mainspring.tasks.sandbox_choice import DOCKER

ROOM = 4 << 20
CHANGES = r"""
sed -i 's/a - b/a + b/' pkg/calc.py; git rm -q pkg/doomed.py; git commit -qam 'an agent may commit'
git mv pkg/moved.py pkg/elsewhere.py; git stash -q; git stash pop -q --index; git tag mark
rm tool.sh; mkdir -p tool.sh/was-a-file; echo x > tool.sh/was-a-file/x; rm .gitignore README.md
ln -s pkg/calc.py README.md; ln -s /nowhere broken; ln pkg/calc.py hard; : > empty; mkdir hollow
printf 'new\nno newline' > 'a new "file" \303\251.txt'; echo n > $'two\nlines'; echo d > -rf
echo s > ' '; mkfifo pipe; mkdir closed; echo in > closed/in; chmod 555 closed; chmod 1751 pkg
printf '\000\001\377' > blob.bin; chmod 600 blob.bin; touch -d '2001-02-03 04:05:06.789' empty pkg
truncate -s 40M sparse; ln -s /etc leads; touch -h -d '2003-01-01' leads
echo t > /tmp/kept; mkdir /tmp/d; echo deep > /tmp/d/deep; echo shared > /dev/shm/shared
echo h > ~/.config-of-agent; git config --global alias.s status
"""
LISTING = r"""
for place in . /tmp ~ /dev/shm; do
    (cd "$place" && find . -mindepth 1 \( -path './.mainspring' -o -path ./.git/objects \) -prune \
        -o -printf '%P|%y|%m|%l|%n|' \( -type d -printf '-\n' -o -printf '%s %T@\n' \) | sort)
    (cd "$place" && find . -path './.mainspring' -prune -o -type f -size -1M -print0 | sort -z |
        xargs -0 -r cat | cksum)
done
git log --oneline --all; git tag; git fsck 2>&1 | sort; git status --porcelain; git s | head -1
stat -c %Y pkg; test hard -ef pkg/calc.py && echo linked; du -k sparse
"""


async def taken(
    sandbox: Sandbox, command: str, max_bytes: int = ROOM, turn: str = "before"
) -> bytes | None:
    ran = await sandbox.run(turn, command, 60)
    assert ran.returncode == 0, ran
    return await sandbox.snapshot(turn, max_bytes)


@pytest.fixture
async def other(backend, request):
    """Where snapshots of `fresh` go."""
    sandbox = await backend.open(make_spec(backend.name, f"{request.node.name}-2"))
    yield sandbox
    await sandbox.close()


async def test_every_kind_of_file_comes_back(backend, fresh, other):
    snapshot = await taken(fresh, CHANGES)
    assert snapshot is not None
    await other.restore(snapshot)
    assert await output(other, LISTING) == await output(fresh, LISTING)
    patch = await fresh.diff()
    assert b"+    return a + b" in patch and b"two\\nlines" in patch
    assert await other.diff() == patch
    assert await output(other, "echo more >> pkg/calc.py; cat closed/in /tmp/d/deep") == (
        b"in\ndeep\n"
    )
    # The sandbox that was rebuilt is as good as the first one.
    again = await taken(other, "rm broken /tmp/kept; echo 3 > third")
    third = await backend.open(make_spec(backend.name, "third"))
    try:
        assert again is not None
        await third.restore(again)
        assert await third.diff() == await other.diff()
        assert await output(third, LISTING) == await output(other, LISTING)
    finally:
        await third.close()


async def test_a_snapshot_goes_in_once(backend, fresh, other):
    snapshot = await taken(fresh, "echo one > count")
    assert snapshot is not None
    await other.restore(snapshot)
    assert (await other.run("t1", "echo two >> count; cat count", 60)).output == b"one\ntwo\n"
    await other.restore(snapshot)
    assert (await other.run("t1", "echo two >> count; cat count", 60)).output == b"one\ntwo\n"
    assert await output(other, "cat count") == b"one\ntwo\n"
    used = await backend.open(make_spec(backend.name, "used"))
    try:
        await output(used, "true")
        with pytest.raises(SnapshotUnfit, match="not fresh"):
            await used.restore(snapshot)
    finally:
        await used.close()


async def test_what_is_no_snapshot_is_refused(other):
    with pytest.raises(SnapshotUnfit, match="put back"):
        await other.restore(b"\x1f\x8bno archive")
    with pytest.raises(SnapshotUnfit, match="not fresh"):
        await other.restore(b"\x1f\x8bno archive")


async def test_one_too_large_is_none(fresh):
    assert await taken(fresh, "head -c 300000 /dev/urandom > noise", 300_000) is None
    kept = await fresh.snapshot("before", 400_000)
    assert kept is not None and len(kept) < 400_000


async def test_none_while_something_runs_or_after_another_turn(fresh):
    assert await taken(fresh, "sleep 300 >/dev/null 2>&1 & true") is None
    await run(fresh, "pkill sleep")
    assert await fresh.snapshot("before", ROOM) is None
    assert (await fresh.run("last", "true", 60)).returncode == 0
    assert await fresh.snapshot("last", ROOM) is not None


async def test_what_nobody_can_read_is_none(fresh):
    assert await taken(fresh, "mkdir shut; echo x > shut/x; chmod 0 shut") is None
    assert await output(fresh, "chmod 700 shut; cat shut/x") == b"x\n"


async def test_names_of_any_bytes_come_back_or_none_is_made(backend, fresh, other):
    snapshot = await taken(fresh, r"echo x > $'\xff\xfe'; mkdir $'\xe9'; echo y > $'\xe9/y'")
    if backend.name == DOCKER:
        assert snapshot is None
        return
    assert snapshot is not None
    await other.restore(snapshot)
    assert await output(other, r"cat $'\xff\xfe' $'\xe9/y'; ls -A | od -c") == await output(
        fresh, r"cat $'\xff\xfe' $'\xe9/y'; ls -A | od -c"
    )


async def test_after_its_owner_died(backend, tmp_path, other):
    command = "pkill sleep; echo kept > kept; echo tmp > /tmp/tmp"
    with owner_of_a_sandbox(backend.name, tmp_path, "1", DIE, command) as owner:
        assert owner.wait(60) == -signal.SIGKILL
    sandbox = await make_backend(backend.name, tmp_path).attach(
        make_spec(backend.name, "left/over"), busy_s=60
    )
    assert (await sandbox.run("t1", command, 60)).returncode == 0
    snapshot = await sandbox.snapshot("t1", ROOM)
    await sandbox.close()
    assert snapshot is not None
    await other.restore(snapshot)
    assert await output(other, "cat kept /tmp/tmp") == b"kept\ntmp\n"


async def test_an_images_whole_root_comes_back(backend, fresh, other):
    if backend.name != DOCKER:
        pytest.skip("its root is read-only")
    snapshot = await taken(
        fresh,
        r"""
        rm -r /usr/share/git-core/templates; mkdir /usr/share/git-core/templates
        echo own > /usr/share/git-core/templates/own; rm /etc/debian_version; mkdir -p /opt/mine
        printf '#!/bin/sh\necho installed\n' > /usr/local/bin/mine; chmod 755 /usr/local/bin/mine
        mv /usr/bin/patch /usr/bin/other-patch; echo setting >> /etc/bash.bashrc
        """,
    )
    assert snapshot is not None
    await other.restore(snapshot)
    look = (
        "mine; ls -A /usr/share/git-core/templates /opt /usr/bin; tail -1 /etc/bash.bashrc; "
        f"ls /etc; cat /usr/bin/other-patch | cksum; stat -c %Y /usr/bin {WORKDIR}"
    )
    assert await output(other, look) == await output(fresh, look)


async def test_an_image_with_a_user_of_its_own(backend):
    if backend.name != DOCKER:
        pytest.skip("all users are the same there")
    image = f"{IMAGE}-user"
    recipe = (
        f"FROM {IMAGE}\nENV HOME=/home/n\nRUN mkdir -p $HOME /opt && "
        f"chown -R nobody {WORKDIR} $HOME && echo o > /opt/open && chmod 666 /opt/open\n"
        "USER nobody\n"
    )
    with closing(docker.from_env(timeout=60)) as client:
        client.images.build(
            fileobj=io.BytesIO(recipe.encode()), tag=image, network_mode="none", rm=True
        )
    specs = [replace(make_spec(backend.name, f"own-{n}"), image=image) for n in range(3)]
    await backend.open(specs[0])
    sandbox = await backend.rename(specs[0].id, specs[1])  # as from a pool of ready ones
    other = await backend.open(specs[2])
    try:
        snapshot = await taken(
            sandbox, "rm README.md; echo x >> tool.sh; echo h > ~/h; echo t > /tmp/t"
        )
        assert snapshot is not None
        await other.restore(snapshot)
        assert await output(other, "cat ~/h /tmp/t; tail -1 tool.sh; ls") == await output(
            sandbox, "cat ~/h /tmp/t; tail -1 tool.sh; ls"
        )
        assert await other.diff() == await sandbox.diff() != b""
        # Nobody but root could give such a file its owner back.
        assert await taken(sandbox, "echo mine > /opt/open", turn="after") is None
    finally:
        await sandbox.close()
        await other.close()


@pytest.mark.parametrize("command", ["echo x > /dev/nul", "echo 127.0.0.1 me >> /etc/hosts"])
async def test_none_of_an_image_when_what_is_mounted_changed(backend, fresh, command):
    if backend.name != DOCKER:
        pytest.skip("nothing there can be written")
    assert await taken(fresh, command) is None
