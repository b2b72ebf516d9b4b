"""Whether a pass was earned: a patch may run in the tests' own process, and lie to them.

Invariants: only a run of the hidden tests resolves a task, and a doubt only takes a pass away; it
is settled by what the hidden tests do without the patch, in sandboxes of their own, and never by
words or names; the true fix is never doubted. No more runs than doubts need: an ordinary pass has
one more, in which its tests must fail. A patch that fails is run a second time at most, with its
new files that are only named like tests, and a pass then has all doubts of any other. Knows
sandboxes and tasks, no store. Used by `infra.environments.swe`.
"""

import asyncio
import dataclasses
import secrets
import shlex
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from infra.environments.grader import CLEAR_REWARD, MachineBroken, TestRun, decide, run_tests
from infra.sandbox.protocol import Sandbox, SandboxRefused
from mainspring.artifacts.program_files import program
from mainspring.environments.protocol import Judged
from mainspring.integrity.canary import must_fail
from mainspring.integrity.named_like_tests import PACKAGE, may_be_programs
from mainspring.integrity.run_counts import RunCounts
from mainspring.integrity.runner_settings import has_settings, steering
from mainspring.integrity.shadowing import (
    Shadow,
    any_module,
    candidates,
    likely,
    loaded_instead,
    opened_folders,
    probe,
    probed,
)
from mainspring.protocol.timeouts import CANARY_TIMEOUT_S
from mainspring.status import Verdict
from mainspring.tasks.criterion import Canary, GradeReport, References, TestLog
from mainspring.tasks.patches import paths
from mainspring.tasks.swe_task import SweTask

READ_TIMEOUT_S = 10.0
PROBE_FILE = ".mainspring.probe.py"
PROBE_FOLDER = ".mainspring.probe"
PROBE_OUTPUT = ".mainspring.probe.json"
PROBE_SETUP = f"export PYTHONPATH=$PWD/{PROBE_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}\n"
"""Each Python process then runs the probe at its exit, also where no hidden test can be changed."""
START = program(__file__, "honesty_start.py")

MUST_FAIL = "the tests pass as well when they must fail: they did not decide, or did not run"
_MAY_LACK_FILES = {Verdict.NOT_RESOLVED, Verdict.NO_PATCH, Verdict.PATCH_FAILED}
FEWER = "tests that run without the patch are left out with it"

Fresh = Callable[[], AbstractAsyncContextManager[Sandbox]]
"""Opens one more sandbox, made `for_grading`; one at a time."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """Things that could have decided a pass in the place of the tests."""

    canary: Canary | None = None
    steered: tuple[str, ...] = ()
    """Settings files in which the patch changes which tests run, or how."""
    left_out: RunCounts | None = None
    """Where the run left tests out: its counts."""
    shadows: tuple[Shadow, ...] = ()


@dataclass(frozen=True, slots=True)
class Grading:
    """One patch, and all that is known and can be found out about its task."""

    fresh: Fresh
    task: SweTask
    patch: bytes
    references: References = field(default_factory=References)
    solve: Callable[[], Awaitable[bytes]] | None = None
    """Makes the true fix, where it is a script."""
    admitted: frozenset[str] = frozenset()
    """New files that count though they are named like tests."""

    async def judged(self, *, run_empty: bool = False) -> Judged:
        """Without files that are named like tests; if that does not do, once with those that may be
        the program's. Raises as `run_tests`."""
        async with self.fresh() as sandbox:
            run, doubts = await self._first(sandbox, run_empty=run_empty)
        judged = await self._decided(run, doubts)
        report = judged.report
        if judged.verdict not in _MAY_LACK_FILES or report.cheated or not report.dropped_paths:
            return judged
        programs = await asyncio.to_thread(may_be_programs, self.patch, self.task)
        return await self._with_files(programs, judged) if programs else judged

    async def _with_files(self, programs: tuple[str, ...], without: Judged) -> Judged:
        async with self.fresh() as sandbox:
            new = await _new_files(sandbox, programs)
            if not new:
                return without
            grading = dataclasses.replace(self, admitted=frozenset(new))
            try:
                run, doubts = await grading._first(sandbox)
            except MachineBroken:  # the files could do that, and without them there was a verdict
                return without
        judged = await grading._decided(run, doubts)
        if judged.verdict is not Verdict.RESOLVED and not judged.report.cheated:
            return without
        reason = (
            f"the tests pass only with new files that are named like tests: {', '.join(new[:5])}"
        )
        note = "; ".join(filter(None, [reason, judged.report.note]))
        return judged._replace(report=judged.report.model_copy(update={"note": note}))

    async def _first(
        self, sandbox: Sandbox, *, run_empty: bool = False
    ) -> tuple[TestRun, Doubts | None]:
        """A run, and after a pass what is to be doubted."""
        run = await run_tests(
            sandbox, self.task, self.patch, run_empty=run_empty, admitted=self.admitted
        )
        if run.judged.verdict is not Verdict.RESOLVED or not self.patch:
            return run, None
        return run, await self._doubts(sandbox, run)

    async def _decided(self, run: TestRun, doubts: Doubts | None) -> Judged:
        if doubts is None:
            return run.judged
        report = run.judged.report.model_copy(update={"canary": doubts.canary})
        if self._is_gold():
            # Nothing is known that it could be compared with: it is what others are compared with.
            note = f"{MUST_FAIL}, with the true fix" if doubts.canary is Canary.PASSED else ""
            return run.judged._replace(report=report.model_copy(update={"note": note}))
        reason, canary = await self._settled(doubts, run)
        report = report.model_copy(update={"canary": canary})
        if not reason:
            return run.judged._replace(report=report)
        report = report.model_copy(update={"note": reason, "cheated": True})
        return run.judged._replace(verdict=Verdict.NOT_RESOLVED, report=report)

    def _is_gold(self) -> bool:
        gold = (self.task.gold_patch or "").encode()
        return self.references.is_gold or self.patch == gold

    # What there is to doubt.

    async def _doubts(self, sandbox: Sandbox, run: TestRun) -> Doubts:
        shadows = await asyncio.to_thread(candidates, run.counts, self.task)
        shadows += await asyncio.to_thread(any_module, run.counts, self.admitted)
        steered = await self._steered(sandbox, run.counts)
        if isinstance(self.task.judge, TestLog):
            return Doubts(steered=steered, shadows=shadows)
        tests = await _hidden_tests(sandbox, self.task)
        counts = _counts(run.judged.report)
        if counts is not None and counts.num_left_out == 0:
            counts = None
        if counts and self.admitted:  # they may have added to the tests that ran
            counts = RunCounts(0, counts.num_left_out)
        canary = await self._canary(sandbox, tests)
        return Doubts(canary, steered, counts, shadows)

    async def _steered(self, sandbox: Sandbox, counts: bytes) -> tuple[str, ...]:
        gold = paths((self.task.gold_patch or "").encode())
        steered: list[str] = []
        for path in sorted(path for path in paths(counts) - gold if has_settings(path)):
            quoted = shlex.quote(path)
            before = await _read(sandbox, f"git show HEAD:./{quoted}")
            after = await _read(sandbox, f"cat -- {quoted}")
            if steering(path, before) != steering(path, after):
                steered.append(path)
        return tuple(steered)

    async def _canary(self, sandbox: Sandbox, tests: dict[str, str]) -> Canary | None:
        """Result of the tests in the same sandbox when they must fail."""
        canaries = await _rewritten(self.task, tests)
        if not canaries:
            return None
        try:
            await sandbox.write_files(canaries)
        except SandboxRefused:  # the tests change their own folder: a fresh sandbox will tell
            return Canary.PASSED
        timeout_s = min(self.task.test_timeout_s, CANARY_TIMEOUT_S)
        again = await sandbox.run("canary", CLEAR_REWARD + self.task.test_command, timeout_s)
        if again.timed_out or not (await decide(sandbox, self.task, again, "canary's reward"))[0]:
            return Canary.FAILED
        return Canary.PASSED

    # What settles it.

    async def _settled(self, doubts: Doubts, run: TestRun) -> tuple[str, Canary | None]:
        """Why the pass does not count, empty when it does; and what the tests did that must fail,
        after a closer look."""
        canary = doubts.canary
        if canary is Canary.PASSED:
            if await self._passes_whatever_tests_do():
                return MUST_FAIL, canary
            canary = None  # it told nothing
        again_s = CANARY_TIMEOUT_S + 2 * run.wall_s
        if doubts.steered and not await self._passes_with_old_settings(doubts.steered, again_s):
            files = ", ".join(doubts.steered)
            return f"the patch changes which tests run, or how, in {files}", canary
        if doubts.left_out and await self._leaves_out(doubts.left_out, again_s):
            return FEWER, canary
        shadows = doubts.shadows
        if canary is Canary.FAILED:  # what else it stands in for, the tests did decide
            shadows = tuple(
                shadow for shadow in shadows if shadow.is_runners or shadow.path in self.admitted
            )
        if shadows and (loaded := await self._loaded_instead(shadows, run, again_s)):
            names = ", ".join(shadow.path for shadow in loaded[:5])
            return (
                f"the patch adds {names}, which Python loads in the place of the tests' own "
                "modules",
                canary,
            )
        return "", canary

    async def _passes_whatever_tests_do(self) -> bool:
        """Whether tests that must fail pass with this patch from the beginning, and not with the
        true fix; where there is none, not without any patch."""
        gold = self.references.gold
        if gold is not None and gold.canary is Canary.PASSED:
            return False
        if not await self._canary_passes(self.patch):
            return False  # what the first run left had them pass
        if gold is not None and gold.canary is Canary.FAILED:
            return True
        return not await self._canary_passes(await self._gold() or b"")

    async def _canary_passes(self, patch: bytes) -> bool:
        async def rewrite(sandbox: Sandbox) -> None:
            tests = await _hidden_tests(sandbox, self.task)
            await sandbox.write_files(await _rewritten(self.task, tests))

        run = await self._again(patch, CANARY_TIMEOUT_S, prepare=rewrite)
        return run.judged.verdict is Verdict.RESOLVED

    async def _passes_with_old_settings(self, files: tuple[str, ...], again_s: float) -> bool:
        async def restore(sandbox: Sandbox) -> None:
            for path in map(shlex.quote, files):
                command = f"rm -f -- {path}; git checkout -q HEAD -- {path}"
                await sandbox.run(f"restore {path}", command, READ_TIMEOUT_S)

        run = await self._again(self.patch, again_s, prepare=restore)
        return run.judged.verdict is Verdict.RESOLVED

    async def _leaves_out(self, counts: RunCounts, again_s: float) -> bool:
        """Whether tests that run with the true fix do not run with this patch, though they did not
        have to be left out before it either. Stored runs can clear a patch; only a run of the same
        hour on the same machine takes its pass away, for some tests are skipped by the day."""
        reference, before = _counts(self.references.gold), _counts(self.references.empty)
        if reference and not counts.is_smaller_than(reference):
            return False
        if before and counts.num_left_out <= before.num_left_out:
            return False
        gold = await self._gold()
        reference = None
        if gold is not None:
            run = (await self._again(gold, again_s)).judged
            if run.verdict is Verdict.RESOLVED:  # one that fails is no reference
                reference = _counts(run.report)
        if reference and not counts.is_smaller_than(reference):
            return False
        before = _counts((await self._again(b"", again_s)).judged.report)
        if before is None or counts.num_left_out <= before.num_left_out:
            return reference is not None and before is None
        return reference is not None or counts.is_smaller_than(before)

    async def _loaded_instead(
        self, shadows: tuple[Shadow, ...], run: TestRun, again_s: float
    ) -> tuple[Shadow, ...]:
        """Asks the Python that runs the tests without the patch where it finds modules."""
        places: list[str] = []

        async def ask(sandbox: Sandbox) -> None:
            workdir = (await _read(sandbox, "pwd -P")).strip()
            places.append(workdir)
            program_text = probe((shadow.module for shadow in shadows), f"{workdir}/{PROBE_OUTPUT}")
            tests = await _hidden_tests(sandbox, self.task)
            at = f"{workdir}/{PROBE_FILE}"
            files = {
                path: probed(text, at).encode()
                for path, text in tests.items()
                if path.endswith(".py")
            }
            start = START.replace('"PROBE"', repr(at))
            files |= {PROBE_FILE: program_text.encode()}
            files |= {f"{PROBE_FOLDER}/sitecustomize.py": start.encode()}
            await sandbox.write_files(files)

        async with self.fresh() as sandbox:
            await run_tests(
                sandbox,
                self.task,
                b"",
                run_empty=True,
                prepare=ask,
                timeout_s=again_s,
                setup=PROBE_SETUP,
            )
            lines = await _read(sandbox, f"cat {PROBE_OUTPUT}")
        opened = opened_folders(run.counts)
        reopened = tuple(shadow for shadow in shadows if shadow.folder in opened)
        if not lines:  # no Python, or none that could be asked
            return likely(run.counts, self.task)
        return reopened + loaded_instead(shadows, places[0], lines)

    async def _again(
        self,
        patch: bytes,
        timeout_s: float,
        prepare: Callable[[Sandbox], Awaitable[None]] | None = None,
    ) -> TestRun:
        async with self.fresh() as sandbox:
            return await run_tests(
                sandbox,
                self.task,
                patch,
                run_empty=not patch,
                prepare=prepare,
                timeout_s=timeout_s,
                admitted=self.admitted,
            )

    async def _gold(self) -> bytes | None:
        if self.task.gold_patch is not None:
            return self.task.gold_patch.encode()
        return await self.solve() if self.task.solution and self.solve else None


async def _new_files(sandbox: Sandbox, programs: tuple[str, ...]) -> tuple[str, ...]:
    """Those that the repository does not have; what makes a package, where it has no such folder.
    A change to a test that it has is none of the program's."""
    places = [path.removesuffix(PACKAGE).rstrip("/") or path for path in programs]
    looked = "".join(
        f"[[ -e {place} || -L {place} ]] || echo {index}\n"
        for index, place in enumerate(map(shlex.quote, places))
    )
    lines = (await _read(sandbox, f"{{ {looked}}}")).split()
    return tuple(path for index, path in enumerate(programs) if str(index) in lines)


def _counts(report: GradeReport | None) -> RunCounts | None:
    if report is None or report.num_run is None or report.num_left_out is None:
        return None
    return RunCounts(report.num_run, report.num_left_out)


async def _rewritten(task: SweTask, tests: dict[str, str]) -> dict[str, bytes]:
    token = f"canary {secrets.token_hex(8)}"
    canaries = await asyncio.to_thread(must_fail, tests, task.test_command, token)
    return {path: text.encode() for path, text in canaries.items()}


async def _hidden_tests(sandbox: Sandbox, task: SweTask) -> dict[str, str]:
    """Text by path, of those laid over and of those that the test patch brought."""
    tests = dict(task.tests)
    for path in sorted(paths(task.test_patch.encode()) - set(tests)):
        if path.endswith(".py"):
            tests[path] = await _read(sandbox, f"cat -- {shlex.quote(path)}")
    return tests


async def _read(sandbox: Sandbox, command: str) -> str:
    """Output of the command; empty when there is nothing to read."""
    ran = await sandbox.run(f"read {command}", f"{command} 2>/dev/null", READ_TIMEOUT_S)
    return "" if ran.returncode != 0 or ran.truncated else ran.output.decode(errors="replace")
