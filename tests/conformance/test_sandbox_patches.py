"""What every backend promises of patches and files, tried on each."""

import dataclasses

import pytest
from sandbox_backend import make_spec, output

from infra.sandbox.protocol import SandboxRefused
from infra.sandbox.session import PatchRefused
from mainspring.tasks.sandbox_choice import BWRAP, DOCKER


async def test_a_patch_carries_every_kind_of_change(backend, fresh):
    assert await fresh.diff() == b""
    await output(
        fresh,
        r"""
        sed -i 's/a - b/a + b/' pkg/calc.py; rm pkg/doomed.py; chmod +x tool.sh
        git mv pkg/moved.py pkg/elsewhere.py; git commit -qam 'an agent may commit'
        printf 'new\nno newline' > 'a new "file" \303\251.txt'; : > empty.txt; ln -s README.md link
        printf '\000\001\377' > blob.bin; printf 'caf\351\n' > latin1.txt; echo noise > debug.log
        git config --global diff.noprefix true; git config core.fileMode false
        """,
    )
    patch = await fresh.diff()
    assert await fresh.diff() == patch and b"debug.log" not in patch
    other = await backend.open(make_spec(backend.name, "apply"))
    try:
        await other.write_files({"incoming/the.patch": patch})
        await output(other, "git apply --index incoming/the.patch && rm -r incoming")
        assert await other.diff() == patch
        listing = "ls -l tool.sh link | cut -c1-10; cat blob.bin latin1.txt | od -c; ls pkg"
        assert await output(other, listing) == await output(fresh, listing)
    finally:
        await other.close()


async def test_odd_files_do_not_spoil_the_patch(fresh):
    await output(
        fresh, "git init -q nested; mkfifo pipe; mkdir shut; echo x > shut/x; chmod 0 shut"
    )
    await output(fresh, "echo more >> README.md; touch .git/index.lock; echo junk > .git/config")
    patch = await fresh.diff()
    assert b"+more" in patch and b"nested" not in patch and b"pipe" not in patch
    assert b"b/shut/x" in patch and await fresh.left_out() == ""


async def test_a_fix_is_collected_beside_a_large_file_and_without_the_right_to_read(fresh):
    await output(
        fresh,
        """
        sed -i 's/a - b/a + b/' pkg/calc.py; head -c 20000000 /dev/urandom > 'core *.1'
        head -c 9000000 /dev/zero > noise.log; echo kept > small; chmod 000 small pkg/calc.py pkg
        """,
        60,
    )
    patch = await fresh.diff()
    assert b"+    return a + b" in patch and b"+kept" in patch and len(patch) < 5000
    assert await fresh.left_out() == "core *.1: over 8 MiB\nnoise.log: ignored by .gitignore"


async def test_a_destroyed_repository_is_no_infrastructure_fault(backend, fresh):
    await output(fresh, "echo more >> README.md; rm -rf .git")
    if backend.name == DOCKER:  # the image's objects stay where the agent reaches them
        with pytest.raises(PatchRefused, match="destroyed"):
            await fresh.diff()
    else:
        assert b"+more" in await fresh.diff()


@pytest.mark.parametrize("workdir", ["/etc/dpkg", "/not/there"])
async def test_an_image_needs_no_repository_but_files(backend, workdir):
    if backend.name == BWRAP:
        pytest.skip("bubblewrap makes the repository itself")
    spec = dataclasses.replace(make_spec(backend.name, "bare"), workdir=workdir)
    if workdir == "/not/there":
        with pytest.raises(SandboxRefused, match="nothing at /not/there"):
            await backend.open(spec)
        return
    sandbox = await backend.open(spec)
    try:
        assert await sandbox.diff() == b""
        await output(sandbox, "echo '# more' >> dpkg.cfg; echo new > new.cfg")
        patch = await sandbox.diff()
        assert b"+# more" in patch and b"b/new.cfg" in patch
    finally:
        await sandbox.close()


async def test_files_go_in_whatever_stands_there(fresh):
    await output(fresh, "ln -sf /etc/passwd target; mkdir -p tests/b; echo old > tests/a")
    content = bytes(range(256)) * 1000
    await fresh.write_files({"target": content, "tests/a": b"new\n", "tests/deep/c": b""})
    assert await output(fresh, "wc -c < target; cat tests/a; ls tests; test ! -L target") == (
        b"256000\nnew\na\nb\ndeep\n"
    )
    for path in ("../up", "/abs", "", ".git/config", "a/.GIT/x"):
        with pytest.raises(SandboxRefused, match=r"path|git"):
            await fresh.write_files({path: b""})
    with pytest.raises(SandboxRefused, match="cannot write"):
        await fresh.write_files({"README.md/below": b"x" * 100_000})
    assert await output(fresh, "echo fine") == b"fine\n"
