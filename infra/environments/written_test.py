"""One test that a policy wrote, run in a fresh sandbox with the patch of another rollout.

Invariants: the sandbox is an agent's, so that nothing of the hidden tests is in it; of the patch
only the program's part is applied, then all that the test's author changed among tests. Knows
sandboxes, no store. Used by `infra.environments.swe`.
"""

from dataclasses import dataclass

from infra.environments.grader import APPLY, PATCH_FILE
from infra.sandbox.protocol import Sandbox
from mainspring.environments.protocol import CommandResult
from mainspring.protocol.timeouts import APPLY_TIMEOUT_S
from mainspring.rewards.written_tests import WrittenTest
from mainspring.tasks.patches import attributes_last

NOT_APPLIED = 125
"""Exit code where the patch does not apply to the repository, or the test's files not over it: a
candidate must not get rid of a test by that. On the original code it is no success either."""
NOTE_CHARS = 300


@dataclass(frozen=True, slots=True)
class TestRan:
    """Result of one test."""

    __test__ = False  # pytest would take it for a test

    exit_code: int
    note: str = ""


async def run_written(
    sandbox: Sandbox, program: bytes, test: WrittenTest, timeout_s: float
) -> TestRan:
    """Apply `program` and the test's files, run its command. Raises SandboxError."""
    if program:
        applied = await _apply(sandbox, "apply", program)
        if applied.returncode != 0:
            return TestRan(NOT_APPLIED, f"the patch does not apply: {_end(applied)}")
    applied = await _apply(sandbox, "apply tests", test.patch)
    if applied.returncode != 0:
        return TestRan(NOT_APPLIED, f"the files of the test do not apply: {_end(applied)}")
    ran = await sandbox.run("test", test.command, timeout_s)
    if ran.timed_out:
        return TestRan(ran.returncode, f"did not end within {timeout_s:g} s")
    return TestRan(ran.returncode)


async def _apply(sandbox: Sandbox, turn: str, patch: bytes) -> CommandResult:
    await sandbox.write_files({PATCH_FILE: attributes_last(patch)})
    return await sandbox.run(turn, f"tests=()\nfolders=()\n{APPLY}", APPLY_TIMEOUT_S)


def _end(result: CommandResult) -> str:
    return result.output.decode(errors="replace").strip()[-NOTE_CHARS:]
