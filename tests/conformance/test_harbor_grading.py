"""Harbor folders, imported and graded: the oracle gets 1.0, doing nothing gets 0.0.

With the task's own script as the fix, in each backend, through every way to write a reward.
"""

import dataclasses
import json

import pytest
from sandbox_backend import IMAGE, WORKDIR, make_spec, output

from infra.environments.grader import Judged, for_grading, for_solving, judge, solve
from infra.sandbox.protocol import SandboxRefused
from infra.sources.harbor import HarborSource
from infra.sources.protocol import ImportOptions
from mainspring.status import Verdict
from mainspring.tasks.reward_file import parse_reward
from mainspring.tasks.sandbox_choice import DOCKER
from mainspring.tasks.swe_task import SweTask

ADDS = "python3 -c 'from pkg.calc import add; assert add(2, 3) == 5'"
TXT, JSON = "/logs/verifier/reward.txt", "/logs/verifier/reward.json"
EITHER = f"if {ADDS}; then echo 1 >{TXT}; else echo 0 >{TXT}; fi"
FIX = "sed -i 's/a - b/a + b/' pkg/calc.py"

FOLDERS: dict[str, tuple[dict[str, str], str, float]] = {
    "reward-txt": ({"test.sh": EITHER}, FIX, 0.0),
    "a-float": (
        {"test.sh": EITHER.replace("echo 1", "echo 1.0").replace("o 0", "o 0.0e0")},
        FIX,
        0,
    ),
    "reward-json": (
        {"test.sh": f"{ADDS} && r=1 || r=0; echo '{{\"reward\": '$r'}}' >{JSON}"},
        FIX,
        0.0,
    ),
    "json-of-one": (
        {"test.sh": f"{ADDS} && r=1.0 || r=0; echo '{{\"adds\": '$r'}}' >{JSON}"},
        FIX,
        0,
    ),
    "json-of-many": (
        {
            "test.sh": "PYTHONPATH=. python3 /tests/check.py",
            "check.py": "import json, os, pkg.calc\nright = float(pkg.calc.add(2, 3) == 5)\n"
            f"json.dump({{'adds': right, 'imports': 1}}, open({JSON!r}, 'w'))\n",
        },
        FIX,
        0.5,
    ),
    "text-before-json": ({"test.sh": f"echo '{{\"reward\": 0.25}}' >{JSON}; {EITHER}"}, FIX, 0.0),
    "two-files": (
        {"test.sh": f"{ADDS} && test -e pkg/new.py && echo 1 >{TXT} || echo 0 >{TXT}"},
        f"{FIX}; echo 'x = 1' >pkg/new.py",
        0.0,
    ),
    "partial": (
        {
            "test.sh": f"n=1; {ADDS} && ((n++)); [ -x tool.sh ] && ((n++))\n"
            f'python3 -c "print($n / 3)" >{TXT}'
        },
        f"{FIX}\nchmod +x tool.sh",
        1 / 3,
    ),
    "deletes": (
        {"test.sh": f"test ! -e pkg/doomed.py; echo $((1 - $?)) >{TXT}"},
        "rm pkg/doomed.py",
        0.0,
    ),
    "binary": (
        {"test.sh": f"cmp -s pkg/data.bin /tests/wanted; echo $((1 - $?)) >{TXT}", "wanted": "new"},
        "printf new >pkg/data.bin",
        0.0,
    ),
    "scripts-help-each-other": (
        {"test.sh": "/tests/lib/check.sh", "lib/check.sh": f"#!/bin/bash\n{EITHER}\n"},
        "bash /solution/more/fix.sh",
        0.0,
    ),
    "fails-and-rewards": ({"test.sh": f"{EITHER}; exit 3"}, f"{FIX}; exit 1", 0.0),
}
BROKEN = {
    "no file": ("true", "no reward file"),
    "empty": (f": >{TXT}", "not a reward"),
    "words": (f"echo well done >{TXT}", "'well done"),
    "not finite": (f"echo nan >{TXT}", "not a finite number"),
    "nested": (f'echo \'{{"reward": {{"a": 1}}}}\' >{JSON}', "'reward' of reward.json"),
    "no object": (f"echo '[1]' >{JSON}", "not a finite number"),
    "a pipe": (f"mkfifo {TXT}", "no reward file"),
}


def write_folder(folder, tests: dict[str, str], solution: str) -> None:
    files = {
        "task.toml": 'version = "1.0"\n[verifier]\ntimeout_sec = 60.0\n[environment]\n'
        f'docker_image = "{IMAGE}"\n',
        "instruction.md": "Addition subtracts. Repair it.\n",
        "environment/Dockerfile": f"FROM {IMAGE}\nWORKDIR {WORKDIR}\n",
        "solution/solve.sh": f"#!/bin/bash\n{solution}\n",
        "solution/more/fix.sh": f"{FIX}\n",
        **{
            f"tests/{path}": f"{text}\n" if path == "test.sh" else text
            for path, text in tests.items()
        },
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def import_task(backend: str, folder) -> SweTask:
    [row] = HarborSource(folder, ImportOptions()).rows()
    assert isinstance(row.result, SweTask), row.result
    if backend == DOCKER:
        return row.result
    # The same repository without an image.
    files = dict(make_spec(backend, "files").files)
    return SweTask.model_validate(row.result.model_dump() | {"image": None, "files": files})


async def grade(backend, task: SweTask, name: str, patch: bytes) -> Judged:
    sandbox = await backend.open(for_grading(make_spec(backend.name, f"grade {name}"), task))
    try:
        return await judge(sandbox, task, patch, run_empty=True)
    finally:
        await sandbox.close()


@pytest.mark.parametrize("name", FOLDERS)
async def test_the_oracle_gets_one_and_doing_nothing_does_not(backend, tmp_path, name):
    tests, solution, nothing = FOLDERS[name]
    write_folder(tmp_path, tests, solution)
    task = import_task(backend.name, tmp_path)
    sandbox = await backend.open(for_solving(make_spec(backend.name, f"solve {name}")))
    try:
        patch = (await solve(sandbox, task)).result
    finally:
        await sandbox.close()
    oracle = await grade(backend, task, name, patch)
    assert (oracle.verdict, oracle.report.score) == (Verdict.RESOLVED, 1.0), oracle
    noop = await grade(backend, task, name, b"")
    assert (noop.verdict, noop.report.score) == (Verdict.NOT_RESOLVED, nothing), noop
    assert noop.report.tests_passed == nothing and noop.report.judge == "reward_file"


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_verifier_without_a_sensible_reward_resolves_nothing(backend, tmp_path, kind):
    script, note = BROKEN[kind]
    write_folder(tmp_path, {"test.sh": script}, FIX)
    judged = await grade(backend, import_task(backend.name, tmp_path), kind, b"")
    assert (judged.verdict, judged.report.score) == (Verdict.NOT_RESOLVED, None)
    assert note in judged.report.note


async def test_an_agents_sandbox_has_none_of_the_verifiers_folders(backend, shared):
    found = await output(shared, "ls -d /tests /solution /logs/verifier 2>/dev/null; echo .")
    assert found == b".\n"
    for path in ("/tests/test.sh", "/logs/verifier/reward.txt"):
        with pytest.raises(SandboxRefused, match="not a path relative"):
            await shared.write_files({path: b"1"})


async def test_only_the_named_folders_are_writable_and_they_are_empty(backend):
    spec = dataclasses.replace(
        make_spec(backend.name, "folders"), writable_dirs=("/checks/x", "/logs/v")
    )
    sandbox = await backend.open(spec)
    try:
        await sandbox.write_files({"/checks/x/a/b": b"one", "/logs/v/c": b"two", "d": b"three"})
        assert await output(sandbox, "cat /checks/x/a/b /logs/v/c d; ls /checks/x /logs/v") == (
            b"onetwothree/checks/x:\na\n\n/logs/v:\nc\n"
        )
        for path in ("/checks/x/../y", "/logs/w", "/checks/x", "/checks/x/"):
            with pytest.raises(SandboxRefused, match="not a path relative"):
                await sandbox.write_files({path: b""})
    finally:
        await sandbox.close()


@pytest.mark.parametrize(
    "name, said, score",
    [
        ("reward.txt", " 0.25\n", 0.25),
        ("reward.json", "1", 1.0),
        ("reward.json", json.dumps({"other": 0, "reward": 0.5}), 0.5),
        ("reward.json", json.dumps({"a": 0, "b": 1}), 0.5),
        ("reward.json", "{}", None),
        ("reward.json", "true", None),
        ("reward.json", "Infinity", None),
        ("reward.json", "1" * 400, None),
        ("reward.json", "[" * 100_000, None),
    ],
)
def test_a_reward_file_says_one_number_or_is_refused(name, said, score):
    if score is not None:
        assert parse_reward(name, said) == score
        return
    with pytest.raises(ValueError, match=r"reward\.json"):
        parse_reward(name, said)
