"""Whether a pass was earned: a patch may run in the tests' own process, and lie to them.

Invariants: nothing here resolves anything, it only takes a pass away; what takes it away is a
reason that a person can check; honest patches stay as they are. Three looks: at files that stand in
for the tests' own modules, at settings that steer the test runner, and at a second run with tests
that must fail. Knows sandboxes and tasks, no store. Used by `grader`.
"""

import asyncio
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.sandbox.protocol import Sandbox
from mainspring.environments.protocol import CommandResult
from mainspring.integrity.canary import must_fail, skipped_by_patch
from mainspring.integrity.runner_settings import has_settings, steering
from mainspring.integrity.shadowing import shadows
from mainspring.tasks.criterion import TestLog
from mainspring.tasks.patches import paths
from mainspring.tasks.swe_task import SweTask

READ_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Doubt:
    reason: str = ""
    """Why the pass does not count; empty: it may."""
    canaries: Mapping[str, bytes] = field(default_factory=dict)
    """The hidden tests as they must fail, to be run in the same way."""


async def before_the_tests(sandbox: Sandbox, task: SweTask, counts: bytes) -> str:
    """Why the applied patch cannot be judged by tests; empty when it can."""
    if shadowed := await asyncio.to_thread(shadows, counts, task):
        return (
            f"the patch adds {', '.join(shadowed[:5])}, which Python would load in the place of "
            "the tests' own modules"
        )
    gold = paths((task.gold_patch or "").encode())
    for path in sorted(path for path in paths(counts) - gold if has_settings(path)):
        quoted = shlex.quote(path)
        before = await _read(sandbox, f"git show HEAD:./{quoted}")
        after = await _read(sandbox, f"cat -- {quoted}")
        if steering(path, before) != steering(path, after):
            return f"the patch changes which tests run, or how, in {path}"
    return ""


async def after_a_pass(
    sandbox: Sandbox, task: SweTask, counts: bytes, tested: CommandResult
) -> Doubt:
    """Nothing to doubt where nothing can tell: a log names each test that passed, and tests in
    other languages are not rewritten."""
    if isinstance(task.judge, TestLog):
        return Doubt()
    tests = await _hidden_tests(sandbox, task)
    if skipped_by_patch(tests, tested.output.decode(errors="replace"), counts):
        return Doubt("tests were skipped by the patch: they do not skip themselves")
    token = f"canary {secrets.token_hex(8)}"
    canaries = await asyncio.to_thread(must_fail, tests, task.test_command, token)
    return Doubt("", {path: text.encode() for path, text in canaries.items()})


async def _hidden_tests(sandbox: Sandbox, task: SweTask) -> dict[str, str]:
    """Text by path, of those laid over and of those that the test patch brought."""
    tests = dict(task.tests)
    for path in sorted(paths(task.test_patch.encode()) - set(tests)):
        if path.endswith(".py"):
            tests[path] = await _read(sandbox, f"cat -- {shlex.quote(path)}")
    return tests


async def _read(sandbox: Sandbox, command: str) -> str:
    """What it prints; empty when there is nothing to read."""
    read = await sandbox.run(f"read {command}", f"{command} 2>/dev/null", READ_TIMEOUT_S)
    return "" if read.returncode != 0 or read.truncated else read.output.decode(errors="replace")
