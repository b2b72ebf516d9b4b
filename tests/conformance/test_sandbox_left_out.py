"""What the agent made reaches the patch, or the record tells what does not, whatever it left."""

import pytest
from sandbox_backend import Limits, make_spec, output, run

from infra.sandbox.session import PATCH_BYTES
from mainspring.tasks.sandbox_choice import DOCKER

FIX = "sed -i 's/a - b/a + b/' pkg/calc.py"
FIXED = b"+    return a + b"
COMMIT = "git add -A; git -c user.name=a -c user.email=a@b commit -qm own"
REPOSITORY = f"git init -q; {COMMIT}"


@pytest.fixture
async def roomy(backend, request):
    sandbox = await backend.open(make_spec(backend.name, request.node.name, Limits()))
    yield sandbox
    await sandbox.close()


async def test_many_files_that_are_too_large_together_leave_the_fix_in_the_patch(roomy):
    await output(
        roomy, f"{FIX}; for k in 1 2 3 4 5; do head -c 7000000 /dev/urandom > b$k; done; echo s > z"
    )
    patch = await roomy.diff()
    assert FIXED in patch and b"b/z" in patch and len(patch) <= PATCH_BYTES
    assert patch.count(b"GIT binary patch") == 3
    left = await roomy.left_out()
    assert left.endswith(": too much for one patch") and left.count("b") == 2


async def test_changes_of_tracked_files_that_are_too_large_together_leave_the_fix(roomy):
    lines = "yes '' | head -c"
    await output(
        roomy,
        f"{FIX}; for k in 1 2 3 4 5; do {lines} 7900000 > t$k; done; {lines} 100 > small; "
        "for f in README.md pkg/data.bin pkg/dos.txt; do head -c 7000000 /dev/urandom > $f; done",
        90,
    )
    patch = await roomy.diff()
    assert FIXED in patch and b"b/README.md" in patch and len(patch) <= PATCH_BYTES
    assert b"b/small" in patch and "too much for one patch" in await roomy.left_out()


@pytest.mark.parametrize("ignored", [False, True])
async def test_what_tools_install_is_taken_whole_or_named_once(roomy, ignored):
    await output(
        roomy,
        f"""
        {FIX}; [ {ignored} = False ] || echo node_modules >> .gitignore
        mkdir -p node_modules/a/node_modules/b node_modules/c src
        head -c 60000 /dev/urandom > one
        for k in $(seq 700); do cat one > node_modules/a/node_modules/b/$k; done
        echo 'export {{}}' > src/new.js
        """,
        90,
    )
    patch = await roomy.diff()
    assert FIXED in patch and b"b/src/new.js" in patch and b"node_modules/a" not in patch
    left = await roomy.left_out()
    assert left.count("node_modules") == 1
    assert left.endswith("ignored by .gitignore" if ignored else "KiB): too much for one patch")


async def test_twenty_thousand_small_files_and_long_names_reach_the_patch(roomy):
    await output(
        roomy, f"{FIX}; mkdir many; cd many; seq 1 20000 | xargs touch; touch $(printf %0250d 1)"
    )
    patch = await roomy.diff()
    assert FIXED in patch and patch.count(b"\ndiff --git a/many/") >= 20_000
    assert await roomy.left_out() == ""


async def test_names_of_any_bytes_are_taken_and_named_in_one_line_each(roomy):
    await output(
        roomy,
        r"""
        head -c 9000000 /dev/zero > huge; head -c 300000 /dev/zero > mid
        for n in $'a\nb' $'q"uo\'te' $'caf\351' $'\303\274n' 'sp ace' '$(x)' '*' ':(top)' ; do
          echo x > "s$n"; cp huge "h$n"; done
        rm huge mid
        """,
        90,
    )
    patch = await roomy.diff()
    for name in (
        rb'"b/sa\nb"',
        rb'"b/sq\"uo',
        rb'"b/scaf\351"',
        b"b/ssp ace",
        b"b/s*",
        b"b/s:(top)",
    ):
        assert name in patch
    left = await roomy.left_out()
    assert left.count("\n") == 0 and left.endswith("and 3 more: over 8 MiB")


async def test_repositories_that_the_agent_made_are_files_like_others(fresh):
    await output(
        fresh,
        f"""
        {FIX}; mkdir -p impl/inner impl/.venv/lib outer/deep; echo 1 > impl/__init__.py
        echo '*.o' > impl/.gitignore; echo o > impl/x.o; echo v > impl/.venv/lib/f
        (cd impl/inner; echo 2 > two.py; {REPOSITORY})
        (cd impl; {REPOSITORY}) 2>/dev/null
        (cd outer/deep; echo 3 > three.py; git init -q)
        (cd pkg; echo 4 > four.py; {REPOSITORY})
        rm README.md; mkdir README.md; (cd README.md; echo 5 > five; {REPOSITORY})
        git worktree add -q wt HEAD; git clone -q . copy; git init -q nothing
        """,
    )
    patch = await fresh.diff()
    names = ("impl/__init__.py", "impl/x.o", "impl/inner/two.py", "outer/deep/three.py")
    for name in (*names, "pkg/four.py", "README.md/five", "wt/pkg/calc.py", "copy/tool.sh"):
        assert f" b/{name}\n".encode() in patch, name
    assert FIXED in patch and b"Subproject" not in patch and b"160000" not in patch
    assert await fresh.left_out() == ""
    assert await fresh.diff() == patch


async def test_a_repository_too_large_for_the_patch_is_named(roomy):
    await output(
        roomy,
        f"{FIX}; mkdir big; cd big; for k in 1 2 3 4 5; do head -c 7000000 /dev/urandom > b$k; "
        f"done; {REPOSITORY}",
        90,
    )
    assert FIXED in await roomy.diff()
    left = await roomy.left_out()
    assert left.startswith("big/ (5 files, ") and left.endswith("too much for one patch")


async def test_new_files_that_gitignore_excludes_are_taken_where_they_are_few_and_no_product(fresh):
    await output(
        fresh,
        """
        printf '%s\n' '*.log' build/ gen/ __pycache__/ '*.pyc' .env > .gitignore
        mkdir -p build/lib/pkg build/sub pkg/__pycache__ gen .pytest_cache
        echo 1 > build/impl.py; echo 2 > build/lib/pkg/calc.py; echo 3 > pkg/__pycache__/c.pyc
        echo 4 > run.log; echo 5 > .env; echo '*' > .pytest_cache/.gitignore
        (cd gen; seq 1 600 | xargs touch); (cd build/sub; git init -q; echo 6 > six.py)
        """,
    )
    patch = await fresh.diff()
    for name in (b"b/build/impl.py", b"b/.env", b"b/build/sub/six.py"):
        assert name in patch
    for name in (b"c.pyc", b"build/lib", b"run.log", b"gen/1", b".pytest_cache"):
        assert name not in patch
    left = await fresh.left_out()
    assert "gen/ (600 files, " in left and "run.log" in left and "pycache" not in left
    assert left.endswith(": ignored by .gitignore")


HIDING = {
    "another encoding": "echo '*.py working-tree-encoding=UTF-16' > .gitattributes",
    "an encoding that fits": "echo '*.py working-tree-encoding=latin1' > .gitattributes",
    "a filter": "echo '*.py filter=lfs' > .gitattributes; git config --global filter.lfs.clean no; "
    "git config --global filter.lfs.required true",
    "no text": "echo '* -diff binary' > .gitattributes",
    "other line ends": "echo '* text eol=crlf' > .gitattributes; git config core.autocrlf true; "
    "git config --global core.safecrlf true",
    "ident": "echo '* ident' > .gitattributes",
    "a lock": "touch .git/index.lock",
    "a broken index": "head -c 1000 /dev/urandom > .git/index",
    "no index": "rm .git/index",
    "marks": "git update-index --assume-unchanged pkg/calc.py; "
    "git update-index --skip-worktree README.md",
    "a sparse checkout": "git sparse-checkout set --no-cone '/pkg/calc.py' '/tool.sh'",
    "an excludes file": "mkdir -p ~/.config/git; echo '*' > ~/.config/git/ignore; "
    "git config --global core.excludesFile ~/.config/git/ignore; echo '*' > .git/info/exclude",
    "an attributes file": "mkdir -p ~/.config/git; echo '* -diff' > ~/.config/git/attributes; "
    "echo '* -diff' > .git/info/attributes",
    "another diff": "git config --global diff.external /bin/false; git config diff.noprefix true; "
    "git config color.ui always; git config --global diff.mnemonicPrefix true",
    "textconv": "echo '*.py diff=x' > .gitattributes; git config --global diff.x.textconv rev",
    "hooks": "git config core.hooksPath /nowhere; git config core.fsmonitor /bin/false",
    "no modes": "git config core.fileMode false; git config core.symlinks false",
    "bare": "git config core.bare true; git config core.worktree /tmp",
    "a commit": COMMIT,
    "another branch": f"git checkout -qb other; {COMMIT}; git tag v1",
    "another history": f"git checkout -q --orphan other; {COMMIT}",
    "a merge": f"git checkout -qb o; {COMMIT}; git checkout -q -; git merge -q --no-commit o",
    "a stash that is back": "git stash -qu; git stash pop -q",
    "a linked folder for .git": "mv .git /tmp/git; ln -s /tmp/git .git",
    "a pipe": "mkfifo pipe; rm pkg/moved.py; mkfifo pkg/moved.py",
    "no rights": "chmod 000 pkg/calc.py pkg; chmod 555 .",
    "no right to a new file": "chmod 000 new.txt",
    "no right to a folder": "chmod 600 pkg; mkdir new; echo a > new/a; chmod 300 new",
    "no right to the folder of all": "chmod 000 .",
    "no right to ignored files": "echo extra/ > .gitignore; mkdir -p extra/in; "
    "echo a > extra/in/a; chmod 000 extra/in",
    "no right to a repository inside": "mkdir in; (cd in; git init -q; echo a > a; chmod 000 a .)",
    "links for folders": "mv pkg /tmp/pkg; cp -r /tmp/pkg pkg; ln -s pkg link; ln -s loop loop",
    "a deep folder": "(for k in $(seq 60); do mkdir -p $(printf %080d 1); cd $(printf %080d 1) || "
    "break; done; echo x > deep)",
    "another case": "mv README.md readme.MD; cp pkg/doomed.py pkg/DOOMED.py",
    "a submodule": f"mkdir /tmp/sub; (cd /tmp/sub; echo x > x; {REPOSITORY}); "
    "git -c protocol.file.allow=always submodule add -q /tmp/sub sub",
}


@pytest.mark.parametrize("hiding", HIDING)
async def test_the_fix_reaches_the_patch_whatever_git_was_told(backend, fresh, hiding):
    await output(fresh, f"{FIX}; echo new > new.txt; {HIDING[hiding]}; true")
    patch = await fresh.diff()
    assert FIXED in patch and b"\n+new\n" in patch and b"GIT binary" not in patch
    other = await backend.open(make_spec(backend.name, "apply"))
    try:
        await other.write_files({"incoming/the.patch": patch})
        await output(other, "git apply incoming/the.patch && rm -r incoming")
        tree = "find . -name .git -prune -o -type f -exec sha256sum {} + | sort | grep -v deep"
        mine = await output(other, tree)
        ours = await output(fresh, f"chmod u+w .; {tree}")
        assert mine == ours or hiding in ("a deep folder", "a sparse checkout")
    finally:
        await other.close()


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ("rm pkg/moved.py; mkfifo pkg/moved.py", "pkg/moved.py: neither a file nor a link"),
        (f"{FIX}; git stash -q", "a stash: not in the working tree"),
        (f"git checkout -qb other; {FIX}; {COMMIT}; git checkout -q -", "branch other: not in the"),
        ("head -c 9000000 /dev/zero > pkg/calc.py", "pkg/calc.py: over 8 MiB"),
    ],
)
async def test_what_is_not_in_the_patch_is_told(fresh, left, told):
    await output(fresh, left)
    await fresh.diff()
    assert told in await fresh.left_out()


async def test_a_deleted_repository_inside_and_its_objects_leave_the_rest(backend, fresh):
    if backend.name == DOCKER:
        pytest.skip("the image's objects stay where the agent reaches them")
    await output(fresh, f"{FIX}; rm -rf .git; echo gone > .git; echo new > new.txt")
    patch = await fresh.diff()
    assert FIXED in patch and b"+new" in patch


async def test_names_are_never_run(fresh):
    """Neither as keys of bash's arrays nor in what git says of them."""
    command = "$(touch ran)"
    await output(
        fresh,
        f"""
        set -f; c='{command}'; mkdir -p "a[$c]" build 'x]'
        printf '%s\\n' build/ '*.log' '@' > .gitignore
        for n in "a[$c]/f" "num_left[$c].log" "build/x[$c]" '`touch ran`' '@' '*' '!' \
          'x]/y' 'git~1'; do echo x > "./$n"; done
        (cd "a[$c]"; git init -q; {COMMIT}); head -c 9000000 /dev/zero > "big[$c]"
        for k in 1 2 3 4 5 6 7; do echo x > "$k[$c].log"; done
        """,
    )
    patch = await fresh.diff()
    assert b"build/x[" in patch and b"b/a[" in patch and b"x]/y" in patch
    left = await fresh.left_out()
    assert "git~1" in left and "and 3 more: ignored by .gitignore" in left
    assert await output(fresh, "find . /tmp ~ /run -name ran 2>/dev/null; true") == b""


@pytest.mark.parametrize(
    "left",
    [
        "bomb() { bomb | bomb & }; bomb",
        "while :; do date >> log; done & sleep 0.2",
        "setsid bash -c 'trap \"\" TERM INT HUP; while :; do echo x >> log; done' & sleep 0.2",
        "for k in $(seq 60); do sleep 300 & done; true",
    ],
    ids=["fork bomb", "writer", "session of its own", "all processes taken"],
)
async def test_what_commands_left_running_keeps_no_fix_out_of_the_patch(backend, request, left):
    name = f"{request.node.name.partition('[')[0]}-{len(left)}"
    sandbox = await backend.open(make_spec(backend.name, name, Limits(max_pids=48)))
    try:
        await output(sandbox, FIX)
        await run(sandbox, left, 3)
        patch = await sandbox.diff()
        assert FIXED in patch
        # Nothing wrote on, and the sandbox takes commands again.
        assert await sandbox.diff() == patch
        assert await output(sandbox, "echo alive") == b"alive\n"
    finally:
        await sandbox.close()
