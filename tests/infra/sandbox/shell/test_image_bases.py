"""What the patch of an image's working tree holds, odd as the image's repository may be."""

import asyncio
import time

import pytest

COMMIT = "git add -A && git -c user.name=a -c user.email=a@b commit -qm c"
FIX = "sed -i 's/a - b/a + b/' calc.py"
FIXED = b"+    return a + b"
NO_FILE = "git -c protocol.file.allow=always"


@pytest.mark.parametrize(
    "before",
    {
        "as it is": "true",
        "no commit": "rm -rf .git; git init -q .; git add -A",
        "no index": "rm .git/index",
        "a broken index": "head -c 500 /dev/urandom > .git/index",
        "no repository": "rm -rf .git",
        "sha256": f"rm -rf .git; git init -q --object-format=sha256 .; {COMMIT}",
        "a split index": "git update-index --split-index",
        "an untracked cache": "git update-index --untracked-cache; git status >/dev/null",
        "marks": "git ls-files -z | git update-index --assume-unchanged -z --stdin; "
        "git update-index --skip-worktree packages/bar/b.py",
        "a sparse checkout": "git sparse-checkout set packages/foo >/dev/null",
        "carriage returns": "git config core.autocrlf true; sed -i 's/$/\\r/' calc.py; "
        "git add calc.py 2>/dev/null",
        "a filter": "echo '*.py filter=lfs' > .gitattributes; git config filter.lfs.clean nowhere; "
        "git config filter.lfs.required true",
        "a linked worktree": "git worktree add -q ../linked HEAD; rm -rf .git; "
        "git init -q . ; git add -A",
        "an exclude file": "echo calc.py >> .git/info/exclude; git rm -q --cached calc.py; "
        "echo '*' > .git/info/exclude",
    }.items(),
    ids=lambda each: each[0],
)
async def test_the_fix_reaches_the_patch_of_any_image(repository, before):
    repository.do(before[1])
    await repository.boot()
    assert await repository.patch() == (b"", "")
    repository.do(f"{FIX}; echo new > new.py")
    patch, left = await repository.patch()
    assert FIXED in patch and b"\n+new\n" in patch and left == ""
    assert patch.count(b"diff --git") == 2


async def test_variables_of_an_image_that_mean_something_to_git_change_nothing(repository):
    await repository.boot(
        GIT_DIR="/nowhere",
        GIT_INDEX_FILE="/nowhere/index",
        GIT_EXTERNAL_DIFF="/bin/false",
        GIT_CONFIG_COUNT="1",
        GIT_CONFIG_KEY_0="diff.noprefix",
        GIT_CONFIG_VALUE_0="true",
        GIT_OBJECT_DIRECTORY="/nowhere/objects",
        GIT_DIFF_OPTS="-u0",
    )
    repository.do(FIX)
    patch, left = await repository.patch()
    assert FIXED in patch and b"--- a/calc.py" in patch and b" def add(a, b)" in patch
    assert left == ""


async def test_a_task_below_the_top_of_its_repository_has_its_own_paths(repository):
    repository.workdir = repository.workdir / "packages/foo"
    await repository.boot()
    repository.do(
        f"{FIX}; echo new > new.py; echo x > a.log; mkdir build; echo 1 > build/impl.py; "
        "echo more >> ../bar/b.py; echo outside > ../bar/new.py"
    )
    patch, left = await repository.patch()
    for name in (b"a/calc.py b/calc.py", b"b/new.py", b"b/build/impl.py"):
        assert b"diff --git " in patch and name in patch
    assert b"packages" not in patch and patch.count(b"diff --git") == 3
    assert left.endswith(
        "/repo/packages/bar/b.py: outside of the working directory\na.log: ignored by .gitignore"
    )


@pytest.mark.parametrize("how", ["absorbed", "cloned", "vendored"])
async def test_changes_inside_a_submodule_reach_the_patch(repository, how):
    repository.do(
        f"mkdir ../sub; cd ../sub; git init -q .; echo 1 > one.py; echo '*.o' > .gitignore; "
        f"{COMMIT}"
    )
    if how == "absorbed":
        repository.do(f"{NO_FILE} submodule add -q ../sub libs/sub 2>/dev/null; {COMMIT}")
    elif how == "cloned":
        repository.do(f"git clone -q ../sub libs/sub; {COMMIT} 2>/dev/null")
    else:
        repository.do("mkdir libs; cp -r ../sub libs/sub; echo 3 > libs/sub/three.py")
    await repository.boot()
    assert await repository.patch() == (b"", "")
    repository.do(
        f"{FIX}; cd libs/sub; echo 2 >> one.py; echo t > two.py; [ -e three.py ] || git add -A; "
        "git -c user.name=a -c user.email=a@b commit -qam c"
    )
    patch, left = await repository.patch()
    assert left == "" and FIXED in patch and b"Subproject" not in patch
    for line in (b"--- a/libs/sub/one.py\n+++ b/libs/sub/one.py", b"+++ b/libs/sub/two.py"):
        assert line in patch
    assert patch.count(b"diff --git") == 3


async def test_what_was_ignored_from_the_start_is_never_a_new_file(repository):
    repository.do("mkdir -p build/deep gen; echo 1 > build/deep/old.py; echo 1 > gen/x.log")
    await repository.boot()
    assert await repository.patch() == (b"", "")
    repository.do("sleep 0.02; echo 2 > build/new.py; echo 2 > build/deep/old.py; echo 3 > gen/y")
    patch, left = await repository.patch()
    assert b"b/gen/y" in patch and patch.count(b"diff --git") == 1
    told = "ignored by .gitignore as others were at the start"
    assert left in (  # as the folder lists them
        f"build/deep/old.py, build/new.py: {told}",
        f"build/new.py, build/deep/old.py: {told}",
    )
    repository.do(": > .gitignore")
    patch, left = await repository.patch()
    assert b"old.py" not in patch and b"x.log" not in patch and b"b/.gitignore" in patch
    assert "build/deep/old.py" in left and left.endswith(": was ignored at the start")


async def test_a_deleted_repository_is_refused_and_not_guessed(repository):
    await repository.boot()
    repository.do(f"{FIX}; rm -rf .git")
    with pytest.raises(AssertionError):
        await repository.patch()


async def change_within_a_second(repository, between=None) -> None:
    """new.py is committed and changed, of one size and inode, in one second, git's unit of time."""
    await asyncio.sleep(1 - time.time() % 1)
    path = repository.workdir / "new.py"
    path.write_text("value = 1\n")
    began = path.stat()
    repository.do(COMMIT)
    if between is not None:
        await between()
    path.write_text("value = 2\n")
    if int(began.st_mtime) != int(path.stat().st_mtime):
        pytest.skip("this machine is too slow to change a file twice within a second")
    await asyncio.sleep(1)


async def test_a_change_of_equal_size_within_the_second_of_the_boot_is_in_the_patch(repository):
    await change_within_a_second(repository, repository.boot)
    patch, left = await repository.patch()
    assert b"-value = 1\n+value = 2\n" in patch and left == ""


async def test_a_change_of_equal_size_within_the_second_of_the_commit_is_in_the_base(repository):
    await change_within_a_second(repository)
    await repository.boot()
    assert await repository.patch() == (b"", "")
    repository.do("echo more >> new.py")
    patch, _ = await repository.patch()
    assert b" value = 2\n+more\n" in patch
