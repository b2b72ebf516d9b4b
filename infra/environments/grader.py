"""One patch tested in a fresh sandbox: what counts of it, the hidden tests over it, one verdict.

Invariants: the sandbox gets the patch before the tests, and of the patch only what may count
(`patches`); a task that cannot be judged at all raises TaskBroken or JudgeMissing, which
is never a verdict about the patch; whatever the patch could have caused is its failure. Whether a
pass was earned is `honesty`'s question. Knows sandboxes and tasks, no store.
"""

import asyncio
import dataclasses
import shlex
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import assert_never

from infra.sandbox.containers.image_edit import Alteration
from infra.sandbox.protocol import Sandbox, SandboxSpec
from infra.sandbox.session import PatchRefused
from infra.sandbox.shell.channel import CHANNEL_BYTES
from infra.verdicts import swebench
from mainspring.artifacts.program_files import program
from mainspring.environments.protocol import CommandResult, Finished, Judged
from mainspring.errors import UsageError
from mainspring.integrity.exploits import Exploit
from mainspring.integrity.run_counts import read_counts
from mainspring.protocol.timeouts import APPLY_TIMEOUT_S
from mainspring.status import FaultKind, Verdict
from mainspring.tasks import reward_file
from mainspring.tasks.criterion import ExitCode, GradeReport, RewardFile, TestLog
from mainspring.tasks.patches import attributes_last, is_test, paths, without_tests
from mainspring.tasks.swe_task import SweTask

PATCH_FILE = ".mainspring.patch"
TEST_PATCH_FILE = ".mainspring.tests.patch"
REWARD_TIMEOUT_S = 10.0
ATTACK_TIMEOUT_S = 60.0
LOG_BYTES = CHANNEL_BYTES - (1 << 20)
"""Kept of a test log to parse; longer ones lose their middle. As much as a sandbox can answer."""
OUTPUT_CHARS = 4000
"""Kept of the tests' output: its end."""
TESTS_DIR = "/tests"
SOLUTION_DIR = "/solution"

APPLY = f"patch={PATCH_FILE}\n" + program(__file__, "grader_apply.sh")
"""After `tests` and `folders`: paths of the hidden tests, and of folders on the way to them."""
_BELOW = '--directory="$(git rev-parse --show-prefix 2>/dev/null)" --whitespace=nowarn'
APPLY_TESTS = f"git apply {_BELOW} {TEST_PATCH_FILE} && rm {TEST_PATCH_FILE}"
CHECK_TESTS = f"git apply --check {_BELOW} {TEST_PATCH_FILE} && rm {TEST_PATCH_FILE}"
READ_REWARD = f"""
cd {reward_file.FOLDER} || exit
for file in {" ".join(reward_file.FILES)}; do
  [[ -f $file ]] && {{ echo $file; exec head -c 65536 -- $file; }}
done
exit 1
"""
LOOK_TIMEOUT_S = 60.0
LOOK_OUTSIDE = f"solution={SOLUTION_DIR}\n" + program(__file__, "look_outside.sh")
CLEAR_REWARD = (
    f"rm -rf -- {' '.join(f'{reward_file.FOLDER}/{file}' for file in reward_file.FILES)}\n"
)


class TaskBroken(UsageError):
    """The task's tests cannot judge any patch."""

    fault = FaultKind.TASK_INVALID


class MachineBroken(Exception):
    """The tests gave no results, and it looks like the machine's fault: it may pass."""


def for_grading(spec: SandboxSpec, task: SweTask) -> SandboxSpec:
    """`spec` with what the task's judge needs beyond an agent's sandbox."""
    if task.hidden_files:
        spec = dataclasses.replace(spec, alteration=Alteration(task.base_patch))
    if isinstance(task.judge, RewardFile) or any(path.startswith("/") for path in task.tests):
        spec = dataclasses.replace(spec, writable_dirs=(TESTS_DIR, reward_file.FOLDER))
    if isinstance(task.judge, TestLog):
        spec = dataclasses.replace(
            spec, limits=dataclasses.replace(spec.limits, output_bytes=LOG_BYTES)
        )
    return spec


def for_solving(spec: SandboxSpec) -> SandboxSpec:
    return dataclasses.replace(spec, writable_dirs=(SOLUTION_DIR,))


@dataclass(frozen=True, slots=True)
class TestRun:
    """Result of one run of the hidden tests."""

    __test__ = False  # pytest would take it for a test

    judged: Judged
    counts: bytes
    """The part of the patch that counts."""
    wall_s: float = 0.0
    """Duration of the tests; 0 when they did not run."""


async def judge(
    sandbox: Sandbox, task: SweTask, patch: bytes, *, run_empty: bool = False
) -> Judged:
    """The verdict of one run, and nothing about how it was earned. Raises as `run_tests`."""
    return (await run_tests(sandbox, task, patch, run_empty=run_empty)).judged


async def run_tests(
    sandbox: Sandbox,
    task: SweTask,
    patch: bytes,
    *,
    run_empty: bool = False,
    prepare: Callable[[Sandbox], Awaitable[None]] | None = None,
    timeout_s: float | None = None,
    setup: str = "",
    admitted: frozenset[str] = frozenset(),
) -> TestRun:
    """Apply what counts of `patch` in a sandbox made `for_grading`, lay the hidden tests over it,
    `prepare` what else is to be different, run the tests, judge. A patch of which nothing counts
    is not run, but for `run_empty`. `setup`: shell commands before those of the tests; `admitted`:
    files that count though they are named like tests.

    Raises TaskBroken, MachineBroken, `infra.verdicts.swebench`'s errors and SandboxLost.
    """
    if isinstance(task.judge, TestLog):
        await swebench.require(task, task.judge)
    counts, dropped = await asyncio.to_thread(without_tests, patch, task, admitted)
    if not counts and not run_empty:
        note = "only changes to tests, CI configuration and start files" if dropped else ""
        report = GradeReport(dropped_paths=dropped, note=note)
        return TestRun(Judged(Verdict.NO_PATCH, "", report), counts)
    test_patch = {TEST_PATCH_FILE: task.test_patch.encode()} if task.test_patch else {}
    if test_patch:
        # While nothing but the task itself can be at fault.
        await sandbox.write_files(test_patch)
        fits = await sandbox.run("check", CHECK_TESTS, APPLY_TIMEOUT_S)
        if fits.returncode != 0:
            raise TaskBroken(
                f"task {task.id}: its test patch does not apply to its repository: {_end(fits)}",
                remedy="compare the task's test_patch and base commit, and import it again",
            )
    await sandbox.write_files({PATCH_FILE: attributes_last(counts)})
    applied = await sandbox.run("apply", _lists(task) + APPLY, APPLY_TIMEOUT_S)
    if applied.returncode == 0 and test_patch:
        await sandbox.write_files(test_patch)
        applied = await sandbox.run("apply tests", APPLY_TESTS, APPLY_TIMEOUT_S)
    if applied.returncode != 0:
        report = GradeReport(dropped_paths=dropped, note="the patch does not apply")
        return TestRun(Judged(Verdict.PATCH_FAILED, _end(applied), report), counts)
    await sandbox.write_files({path: text.encode() for path, text in task.tests.items()})
    if prepare is not None:
        await prepare(sandbox)
    limit_s = task.test_timeout_s if timeout_s is None else min(timeout_s, task.test_timeout_s)
    tested = await sandbox.run("tests", setup + task.test_command, limit_s)
    if tested.timed_out:
        verdict, report = Verdict.TESTS_TIMED_OUT, GradeReport(note="the tests did not end in time")
    else:
        resolved, report = await decide(sandbox, task, tested)
        verdict = Verdict.RESOLVED if resolved else Verdict.NOT_RESOLVED
    details: dict[str, object] = {
        "judge": task.judge.kind,
        "returncode": tested.returncode,
        "dropped_paths": dropped,
    }
    if not isinstance(task.judge, TestLog):  # a log names each test
        output = tested.output.decode(errors="replace")
        if (counted := await asyncio.to_thread(read_counts, output)) is not None:
            details |= {"num_run": counted.num_run, "num_left_out": counted.num_left_out}
    return TestRun(
        Judged(verdict, _end(tested), report.model_copy(update=details)), counts, tested.wall_s
    )


async def solve(sandbox: Sandbox, task: SweTask) -> Finished:
    """The patch of the task's true fix, taken as an agent's is, in a sandbox made `for_solving`. A
    gold patch is applied; a solution has as much time as its tests have, and what its script
    returns does not matter: the tests will tell."""
    if task.gold_patch is not None:
        gold = task.gold_patch.encode()
        await sandbox.write_files({PATCH_FILE: attributes_last(gold)})
        applied = await sandbox.run("solve", f"tests=()\nfolders=()\n{APPLY}", APPLY_TIMEOUT_S)
        if applied.returncode != 0:  # as it is, so that grading tells what does not fit
            return Finished(gold, "the gold patch does not apply in an agent's sandbox")
        return Finished(await sandbox.diff(), await sandbox.left_out() or None)
    await sandbox.write_files(
        {f"{SOLUTION_DIR}/{path}": text.encode() for path, text in task.solution.items()}
    )
    await sandbox.run("solve", f"bash {SOLUTION_DIR}/solve.sh", task.test_timeout_s)
    outside = await sandbox.run("look", LOOK_OUTSIDE, LOOK_TIMEOUT_S)
    patch = await sandbox.diff()
    notes = [await sandbox.left_out(), outside.output.decode(errors="replace").strip()]
    return Finished(patch, "\n".join(filter(None, notes)) or None)


async def attack(sandbox: Sandbox, task: SweTask, exploit: Exploit) -> bytes:
    """The patch that the exploit makes, in a sandbox as agents get it."""
    gold = paths((task.gold_patch or "").encode())
    targets = sorted(path for path in gold if path.endswith(".py") and not is_test(path))
    await sandbox.run("attack", exploit.command(targets), ATTACK_TIMEOUT_S)
    try:
        return await sandbox.diff()
    except PatchRefused:  # it destroyed the repository, which gets it nothing
        return b""


async def decide(
    sandbox: Sandbox, task: SweTask, tested: CommandResult, turn: str = "reward"
) -> tuple[bool, GradeReport]:
    """`turn`: another one for each time that the reward is read in the same sandbox."""
    match task.judge:
        case ExitCode():
            return tested.returncode == 0, GradeReport()
        case TestLog() as judging:
            judgement = await swebench.judge_log(task, judging, tested.output)
            if judgement.broken:
                raise MachineBroken(
                    f"the tests gave no results: {judgement.broken}: {_end(tested)}"
                )
            report = judgement.report
            if tested.truncated and not report.note:
                report = report.model_copy(update={"note": "the log lost its middle: too long"})
            return judgement.resolved, report
        case RewardFile(threshold=threshold):
            ran = await sandbox.run(turn, READ_REWARD, REWARD_TIMEOUT_S)
            if ran.returncode != 0:
                return False, GradeReport(note=f"no reward file in {reward_file.FOLDER}")
            name, _, text = ran.output.decode(errors="replace").partition("\n")
            try:
                score = reward_file.parse_reward(name, text)
            except ValueError as wrong:
                return False, GradeReport(note=str(wrong))
            return score >= threshold, GradeReport(score=score)
        case _:
            assert_never(task.judge)


def _lists(task: SweTask) -> str:
    """The bash arrays that APPLY begins with; folders before what they hold."""
    laid_over = (path for path in task.tests if not path.startswith("/"))
    tests = sorted(map(PurePosixPath, (*laid_over, TEST_PATCH_FILE)))
    patched = map(PurePosixPath, paths(task.test_patch.encode()))
    parents = {parent for path in (*tests, *patched) for parent in path.parents[:-1]}
    arrays: dict[str, Iterable[PurePosixPath]] = {"tests": tests, "folders": sorted(parents)}
    return "".join(f"{name}=({shlex.join(map(str, values))})\n" for name, values in arrays.items())


def _end(result: CommandResult) -> str:
    return result.output[-4 * OUTPUT_CHARS :].decode(errors="replace")[-OUTPUT_CHARS:]
