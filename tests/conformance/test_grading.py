"""What grading makes of patches, on each backend: honest ones of every kind, and hostile ones."""

import asyncio

import pytest
from sandbox_backend import FILES, IMAGE, WORKDIR, Reset, make_spec, output

from infra.environments.grader import judge
from mainspring.ids import TaskId
from mainspring.status import Verdict
from mainspring.tasks.sandbox_choice import DOCKER
from mainspring.tasks.swe_task import SweTask

TREE = (
    "find . -path ./.git -prune -o ! -type d -printf '%P %y %m %l\\n' -type f -exec sha256sum {} + "
    "| sort"
)
BASE = "$(git rev-list --max-parents=0 HEAD)"
HIDDEN = "tests/deep/hidden.sh"
HONEST = {
    "an edit": "sed -i 's/a - b/a + b/' pkg/calc.py",
    "a deletion": "rm pkg/doomed.py",
    "a rename": "mv pkg/moved.py pkg/elsewhere.py",
    "a mode": "chmod +x README.md; chmod -x tool.sh",
    "a new binary": "printf '\\000\\377\\001' >new.bin",
    "a changed binary": "printf '\\000\\376' >>pkg/data.bin",
    "a deleted binary": "rm pkg/data.bin",
    "a new empty file": ": >empty; mkdir -p a/b; : >a/b/__init__.py",
    "an emptied file": ": >README.md",
    "no newline at the end": "printf 'no newline' >>README.md; printf 'none' >new.txt",
    "CRLF": "sed -i 's/two/2/' pkg/dos.txt; printf 'a\\r\\nb\\n' >mixed.txt",
    "CR alone and trailing blanks": "printf 'a\\rb\\r \\t\\n\\n\\n' >odd.txt",
    "names": "for f in 'a b' ' lead' 'tail ' $'n\\303\\251' $'\\377' $'t\\tn\\nl' '\"q\\' -- -p '*'"
    '; do echo "$RANDOM" >"./pkg/$f"; done',
    "a link": "ln -s README.md link; ln -s /nowhere out; ln -s . pkg/loop",
    "a file for a link and back": "rm README.md; ln -s tool.sh README.md",
    "a folder for a file": "rm pkg/doomed.py; mkdir pkg/doomed.py; echo x >pkg/doomed.py/x",
    "a file for a folder": "rm -r pkg; echo now a file >pkg",
}
FIX = b"""\
diff --git a/pkg/calc.py b/pkg/calc.py
--- a/pkg/calc.py
+++ b/pkg/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


def new_file(path: str, content: str = "x", mode: str = "100644") -> bytes:
    header = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    end = "\n\\ No newline at end of file" if mode == "120000" else "\n"
    return f"{header}@@ -0,0 +1 @@\n+{content}{end.removesuffix(chr(10))}\n".encode()


REFUSED = {
    "garbage": bytes(range(256)) * 10,
    "text": b"I could not do it.\n",
    "cut short": FIX[:-20],
    "another repository's": FIX.replace(b"calc", b"absent"),
    "up and out": FIX + new_file("../escaped"),
    "up and out by a rename": FIX
    + b"diff --git a/README.md b/../escaped\nsimilarity index 100%\n"
    + b"rename from README.md\nrename to ../escaped\n",
    "through a link": FIX + new_file("out", "/tmp", "120000") + new_file("out/escaped"),
    "git's hooks": FIX + new_file(".git/hooks/post-checkout", "#!/bin/sh", "100755"),
    "git's configuration": FIX
    + b"--- a/.git/config\n+++ b/.git/config\n@@ -1 +1,2 @@\n [core]\n+\tfsmonitor = false\n",
    "git's own by another case": FIX + new_file(".GIT/escaped"),
}
RESOLVING = {
    "the fix": FIX,
    "its line ends lost": FIX.rstrip(b"\n") + b"\n\n",
    "fuzzy": FIX.replace(b" def add(a, b)", b" def add(a,b)"),
    "an absolute name": FIX + new_file("/tmp/escaped"),
    "5 MB": FIX + new_file("big", "x" * (5 << 20)),
    "a folder where the test goes": FIX + new_file(f"{HIDDEN}/inner"),
    "a link where the test goes": FIX + new_file(HIDDEN, "/tmp/escaped", "120000"),
    "a read-only test": FIX + new_file(HIDDEN, "exit 0", "100444"),
    "a link where the test's folder goes": FIX + new_file("tests", "/tmp", "120000"),
    "a link below it": FIX + new_file("tests/deep", "/tmp", "120000"),
    "a loop of links": FIX + new_file("tests", "tests", "120000"),
    "a file where the test's folder goes": FIX + new_file("tests"),
    "python's start files": FIX + new_file("sitecustomize.py", "1") + new_file("conftest.py", "1"),
}


def make_task(backend: str, *tests: str) -> SweTask:
    return SweTask(
        id=TaskId("t/1"),
        source="t",
        split="train",
        issue="add subtracts",
        image=IMAGE if backend == DOCKER else None,
        files={} if backend == DOCKER else FILES,
        workdir=WORKDIR,
        tests=dict.fromkeys(tests, "grep -q 'a + b' pkg/calc.py\n"),
        test_command=f"bash {tests[0]}" if tests else "true",
        test_timeout_s=300,
    )


@pytest.fixture(scope="module")
async def pair(backend):
    async with asyncio.TaskGroup() as opening:
        opened = [opening.create_task(backend.open(make_spec(backend.name, id))) for id in "ab"]
    yield [task.result() for task in opened]
    await asyncio.gather(*(task.result().close() for task in opened))


@pytest.fixture
async def sandboxes(pair):
    for sandbox in pair:
        await output(sandbox, f"git checkout -qf {BASE} && git clean -qfdx && rm -rf /tmp/[!.]*")
        assert await sandbox.diff() == b""
    return [Reset(sandbox) for sandbox in pair]


@pytest.fixture
def fresh(sandboxes):
    return sandboxes[0]


@pytest.mark.parametrize("change", HONEST)
async def test_an_honest_patch_gives_the_same_tree(backend, sandboxes, change):
    agent, fresh = sandboxes
    await output(agent, HONEST[change])
    task = make_task(backend.name)
    judged = await judge(fresh, task, await agent.diff())
    assert (judged.verdict, judged.output) == (Verdict.RESOLVED, "")
    assert await output(fresh, TREE) == await output(agent, TREE)


async def outside(sandbox) -> bytes:
    return await output(
        sandbox, "ls -d /tmp/[!.]* /escaped* .git/hooks/post-checkout 2>/dev/null; true"
    )


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_patch_that_does_not_apply_is_the_agents_failure(backend, fresh, kind):
    before = await output(fresh, "cat .git/config")
    judged = await judge(fresh, make_task(backend.name, HIDDEN), REFUSED[kind])
    assert judged.verdict is Verdict.PATCH_FAILED
    assert await outside(fresh) == b"" and await output(fresh, "cat .git/config") == before


@pytest.mark.parametrize("kind", RESOLVING)
async def test_the_hidden_tests_are_laid_over_whatever_stands_there(backend, fresh, kind):
    task = make_task(backend.name, HIDDEN, "hidden.sh")
    assert (await judge(fresh, task, RESOLVING[kind])).verdict is Verdict.RESOLVED
    assert await outside(fresh) == b""
    assert await output(fresh, f"cat {HIDDEN}") == task.tests[HIDDEN].encode()


MOVED = b"".join(
    b"diff --git a/tests b/tests\n%s file mode 120000\n--- %s\n+++ %s\n%s\n"
    b"\\ No newline at end of file\n" % each
    for each in (
        (b"deleted", b"a/tests", b"/dev/null", b"@@ -1 +0,0 @@\n-real"),
        (b"new", b"/dev/null", b"b/tests", b"@@ -0,0 +1 @@\n+other"),
    )
)


@pytest.mark.parametrize(
    "patch, verdict", [(FIX, Verdict.RESOLVED), (FIX + MOVED, Verdict.PATCH_FAILED)]
)
async def test_the_repositorys_own_link_to_its_tests_stays(backend, fresh, patch, verdict):
    await output(fresh, "mkdir -p real/deep other/deep; ln -s real tests")
    assert (await judge(fresh, make_task(backend.name, HIDDEN), patch)).verdict is verdict
    assert (await output(fresh, "ls real/deep")).strip() == (
        b"hidden.sh" if verdict is Verdict.RESOLVED else b""
    )


@pytest.mark.parametrize("conflict", [False, True])
async def test_a_patch_against_another_version_is_merged(backend, fresh, conflict):
    """Also where the index knows the files under other times, as in a copied tree."""
    patch = await output(
        fresh,
        f"""
        sed -i 's/line 15/line fifteen/' pkg/moved.py; git diff --full-index
        git checkout -q pkg; sed -i 's/line {15 if conflict else 12}$/line 0/' pkg/moved.py
        git commit -qam other; touch -d 2001-01-01 pkg/*
        """,
    )
    judged = await judge(fresh, make_task(backend.name), patch)
    assert judged.verdict is (Verdict.PATCH_FAILED if conflict else Verdict.RESOLVED)
    lines = (await output(fresh, "cat pkg/moved.py")).splitlines()
    assert (b"line fifteen" in lines, b"line 0" in lines) == (not conflict, True)
    assert len(lines) == 30
