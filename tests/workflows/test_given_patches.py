"""Patches that nobody played, given and graded by the activities: what is stored, and whose fault.

With a real store and real sandboxes, and without workflows.
"""

import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from cluster import bwrap_or_skip
from temporalio.testing import ActivityEnvironment

from activities.grading import MAX_ATTEMPTS, MAX_EMPTY_RUNS, GradingActivities
from bundled.gold import git_patch
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.nodes import sandboxes
from infra.db.rollouts import groups, rollouts
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.environments.hosted import Environments
from infra.sandbox.protocol import SandboxBroken, SandboxRefused
from infra.verdicts import swebench
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import CampaignId, NodeId, RolloutId, TaskId, group_id, rollout_id
from mainspring.protocol.rollout import GradeResult, RolloutRef
from mainspring.status import FaultKind, GroupKind, Player, Verdict
from mainspring.tasks.criterion import Canary, GradeReport, RewardFile, TestLog
from mainspring.tasks.swe_task import SweTask

BUGGY, FIXED = "def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"
TEST = "from calc import add\nassert add(2, 3) == 5\n"
GOLD = git_patch("calc.py", BUGGY, FIXED)
NODE = NodeId("given")


@dataclass(frozen=True, slots=True)
class Grader:
    db: Database
    activities: GradingActivities

    async def rollout(self, player: Player, *sources: RolloutId, **fields: Any) -> RolloutRef:
        """Claimed, of a campaign and a task of its own."""
        name = f"g-{uuid.uuid4().hex[:8]}"
        shared = {
            "files": {"calc.py": BUGGY, "setup.py": "x"},
            "tests": {"hidden_test.py": TEST},
            "test_command": "python3 hidden_test.py",
        }
        task = SweTask(id=TaskId(name), source="t", split="train", issue="x", **(shared | fields))
        await tasks.put_tasks(self.db, [task])
        await campaigns.create(
            self.db, CampaignConfig(name=name, policy=PolicyConfig(model="none"))
        )
        group = group_id(CampaignId(name), 0)
        rollout = rollout_id(group, 0)
        await groups.create_group(
            self.db,
            group,
            CampaignId(name),
            GroupKind.TRAIN,
            index=0,
            task=task.id,
            policy_version=0,
            split="train",
            rollouts=[NewRollout(rollout, task.id, 0, 1.0, player, *sources)],
        )
        claim = await rollouts.claim(self.db, rollout, "run")
        assert claim.player is player
        return RolloutRef(rollout=rollout, epoch=claim.epoch)

    async def give(self, ref: RolloutRef) -> bytes:
        given = await self.attempt(self.activities.give_patch, ref)
        patch = await rollouts.get_patch(self.db, ref.rollout, ref.epoch)
        assert patch is not None and given.num_bytes == len(patch)
        return patch

    async def grade(self, ref: RolloutRef, attempt: int = 1) -> tuple[GradeResult, GradeReport]:
        result = await self.attempt(self.activities.grade, ref, attempt)
        report = await rollouts.get_grade_report(self.db, ref.rollout)
        assert report is not None
        assert await sandboxes.open_leases(self.db, NODE) == []
        return result, report

    async def attempt(
        self, activity: Callable[[RolloutRef], Awaitable[Any]], ref: RolloutRef, attempt: int = 1
    ) -> Any:
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, attempt=attempt)
        return await environment.run(activity, ref)


@pytest.fixture(scope="module")
async def grader(
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Grader]:
    backends = await bwrap_or_skip(tmp_path_factory.mktemp("given"))
    async with Database.open(stack.database_url) as db:
        yield Grader(db, GradingActivities(db, FactCache(db), NODE, Environments(backends)))


async def test_gold_resolves_empty_runs_and_a_stored_patch_is_graded_again(grader: Grader) -> None:
    gold = await grader.rollout(Player.GOLD, gold_patch=GOLD)
    given = await grader.give(gold)
    assert b"+    return a + b" in given and given == await grader.give(gold)
    result, report = await grader.grade(gold)
    assert (result.verdict, report) == (
        Verdict.RESOLVED,
        GradeReport(judge="exit_code", returncode=0, canary=Canary.FAILED),
    )
    assert await grader.grade(gold) == (result, report)

    empty = await grader.rollout(Player.EMPTY)
    assert await grader.give(empty) == b""
    result, report = await grader.grade(empty)
    assert (result.verdict, report.returncode) == (Verdict.NOT_RESOLVED, 1)

    again = await grader.rollout(Player.STORED, gold.rollout)
    assert await grader.give(again) == given
    assert (await grader.grade(again))[0].verdict is Verdict.RESOLVED
    none = await grader.rollout(Player.STORED, empty.rollout)
    assert await grader.give(none) == b""
    result, report = await grader.grade(none)
    assert (result.verdict, report) == (Verdict.NO_PATCH, GradeReport())


async def test_a_solution_is_run_in_a_sandbox_of_its_own(grader: Grader) -> None:
    ref = await grader.rollout(
        Player.GOLD,
        solution={"solve.sh": "cp /solution/fixed.py calc.py; exit 3", "fixed.py": FIXED},
        tests={"/tests/test.sh": "PYTHONPATH=. python3 /tests/it.py && echo 1 >$OUT/reward.txt"}
        | {"/tests/it.py": TEST},
        test_command="OUT=/logs/verifier bash /tests/test.sh",
        judge=RewardFile(),
    )
    assert b"+    return a + b" in await grader.give(ref)
    result, report = await grader.grade(ref)
    assert (result.verdict, report.score) == (Verdict.RESOLVED, 1.0)


async def test_gold_and_agent_go_the_same_way_in(grader: Grader) -> None:
    """What an agent's identical work would lose is lost to the gold patch, and told."""
    shared = {"files": {"calc.py": BUGGY, ".gitignore": "build/\n*.log\n"}}
    for ignored, verdict in (("build/impl.py", Verdict.RESOLVED), ("x.log", Verdict.NOT_RESOLVED)):
        gold = git_patch("calc.py", BUGGY, f"exec(open('{ignored}').read())\n")
        gold += git_patch(ignored, "", FIXED)
        ref = await grader.rollout(Player.GOLD, gold_patch=gold, **shared)
        await grader.give(ref)
        assert (await grader.grade(ref))[0].verdict is verdict
        note = (await rollouts.get(grader.db, ref.rollout)).patch_note
        assert note == (None if verdict is Verdict.RESOLVED else "x.log: ignored by .gitignore")


async def test_what_a_solution_leaves_outside_of_the_working_directory_is_told(
    grader: Grader,
) -> None:
    ref = await grader.rollout(
        Player.GOLD,
        solution={"solve.sh": "echo $MODE > /tmp/flag; echo x > ~/y; mkdir -p ~/.cache/z"},
        variables={"MODE": "fast"},
        tests={"/tests/test.sh": "grep fast /tmp/flag && echo 1 > /logs/verifier/reward.txt"},
        test_command="bash /tests/test.sh",
        judge=RewardFile(),
    )
    assert await grader.give(ref) == b""
    note = (await rollouts.get(grader.db, ref.rollout)).patch_note
    assert note is not None and "/tmp/flag" in note and "/y" in note and ".cache" not in note
    assert note.endswith(": outside of the working directory, so not graded")


async def test_variables_and_executables_reach_the_tests_too(grader: Grader) -> None:
    ref = await grader.rollout(
        Player.GOLD,
        gold_patch=GOLD,
        files={"calc.py": BUGGY, "bin/tool": "#!/bin/sh\necho $MODE\n"},
        tests={"check.sh": "#!/bin/sh\ntest $(bin/tool) = fast && grep 'a + b' calc.py"},
        test_command="./check.sh",
        executables=("bin/tool", "check.sh"),
        variables={"MODE": "fast"},
    )
    await grader.give(ref)
    assert (await grader.grade(ref))[0].verdict is Verdict.RESOLVED


async def test_what_cannot_be_given_says_whose_fault_it_is(grader: Grader) -> None:
    ref = await grader.rollout(Player.GOLD)
    with pytest.raises(SandboxRefused, match="gold_patch or its solution"):
        await grader.give(ref)


async def test_tests_in_a_patch_do_not_count_and_are_named(grader: Grader) -> None:
    ref = await grader.rollout(Player.POLICY)
    cheat = git_patch("tests/test_x.py", "", "x = 1\n") + git_patch("conftest.py", "", "x = 1\n")
    await rollouts.put_patch(grader.db, ref.rollout, ref.epoch, cheat.encode())
    result, report = await grader.grade(ref)
    assert (result.verdict, report.dropped_paths) == (
        Verdict.NO_PATCH,
        ("tests/test_x.py", "conftest.py"),
    )


LOG = TestLog(parser="parse_log_pytest", fail_to_pass=("t::a",))


async def test_a_tasks_own_fault_is_masked_at_once(grader: Grader) -> None:
    ref = await grader.rollout(Player.EMPTY, test_patch=git_patch("calc.py", "a\n", "b\n"))
    await grader.give(ref)
    result, report = await grader.grade(ref)
    assert result.verdict is Verdict.FAULT and "test patch does not apply" in str(result.fault)
    assert ref.rollout.split("/")[0] in str(result.fault) and report == GradeReport()


@pytest.mark.parametrize(
    "wrong",
    [
        {"workdir": "/usr/new"},
        {"files": {"../up.py": "x"}},
        {"files": {"n" * 300: "x"}},
        {"tests": {"/etc/hidden.py": "x"}},
    ],
    ids=["workdir", "path", "name", "test"],
)
async def test_a_task_that_no_sandbox_can_run_is_tried_once(
    grader: Grader, wrong: dict[str, Any]
) -> None:
    ref = await grader.rollout(Player.EMPTY, **wrong)
    await grader.give(ref)
    result, report = await grader.grade(ref)
    assert result.verdict is Verdict.FAULT and report == GradeReport()
    assert str(result.fault).startswith(f"{FaultKind.TASK_INVALID}: ")
    assert ref.rollout.split("/")[0] in str(result.fault)


async def test_a_node_without_the_library_says_which_extra_it_needs(
    grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swebench, "find_spec", lambda _: None)
    ref = await grader.rollout(Player.EMPTY, judge=LOG)
    await grader.give(ref)
    result, _ = await grader.grade(ref)
    assert result.verdict is Verdict.FAULT and "mainspring[swe]" in str(result.fault)


async def test_names_of_tests_may_hold_anything(grader: Grader) -> None:
    strange = GradeReport(judge="test_log", fail_to_pass_failed=("a\0b\ud800", "\udcff"))
    ref = await grader.rollout(Player.POLICY)
    await rollouts.put_grade(
        grader.db, ref.rollout, ref.epoch, Verdict.NOT_RESOLVED, "", None, strange
    )
    report = await rollouts.get_grade_report(grader.db, ref.rollout)
    assert report is not None and report.fail_to_pass_failed == ("a\ufffdb\ufffd", "\ufffd")


async def test_a_broken_machine_is_tried_again_and_then_masked(grader: Grader) -> None:
    pytest.importorskip("swebench", reason="the swe extra is not installed")
    ref = await grader.rollout(
        Player.EMPTY, judge=LOG, test_command="echo Could not resolve host: example.org"
    )
    await grader.give(ref)
    with pytest.raises(SandboxBroken, match="network_unreachable"):
        await grader.attempt(grader.activities.grade, ref)
    result, _ = await grader.grade(ref, attempt=MAX_EMPTY_RUNS)
    assert result.verdict is Verdict.FAULT and MAX_EMPTY_RUNS < MAX_ATTEMPTS
