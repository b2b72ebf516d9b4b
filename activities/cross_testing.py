"""Cross tests: tests that rollouts of a task wrote, run against the patch of one of them.

Invariant 2: each result is stored when it is there, and what is stored is not run again, whatever
was killed. Invariant 5: a sandbox that fails is no failed test: the test is tried again, and after
MAX_ATTEMPTS stored as not compared. Invariant 10: nothing here reads the hidden tests; sandboxes
are those of agents. A rollout's own tests are also run without any patch, by the first of those
that wrote them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from temporalio import activity

from activities.grading import MAX_ATTEMPTS
from activities.implements import implements
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.nodes import sandboxes
from infra.db.rollouts import cross_tests
from infra.db.rollouts.cross_tests import StoredCrossTest
from infra.environments.hosted import Environments
from infra.sandbox.protocol import SandboxBroken, SandboxRefused
from infra.temporal.faults import naming
from infra.temporal.heartbeat import heartbeating
from mainspring.config.evaluations.choosing import ChooseConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.environments.protocol import Place
from mainspring.errors import ConfigError, SandboxError
from mainspring.ids import NodeId, RolloutId, SandboxId
from mainspring.protocol.activities import CROSS_TEST
from mainspring.protocol.cross_testing import CrossTestCounts, CrossTestInput
from mainspring.rewards.written_tests import WrittenPatch, WrittenTest, counting, written
from mainspring.tasks.swe_task import SweTask

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TestedPair:
    """A test, and the program that it is run against."""

    test: WrittenTest
    program: bytes
    without_patch: bool


@dataclass(frozen=True, slots=True)
class _Work:
    rollout: RolloutId
    epoch: int
    task: SweTask
    choose: ChooseConfig


class CrossTestActivities:
    def __init__(
        self, db: Database, cache: FactCache, node: NodeId, environments: Environments
    ) -> None:
        self._db = db
        self._cache = cache
        self._node = node
        self._environments = environments

    @implements(CROSS_TEST)
    async def cross_test(self, ask: CrossTestInput) -> CrossTestCounts:
        async with heartbeating("testing"):
            try:
                return await self._all(ask.rollout)
            except Fenced as over:
                # It is played again: the run that does so compares it again.
                log.info("not compared", rollout=ask.rollout, reason=over.message)
                return CrossTestCounts(num_tests=0, num_not_compared=0)

    async def _all(self, rollout: RolloutId) -> CrossTestCounts:
        facts = await self._cache.rollout(rollout)
        config, task = facts.config, facts.task
        choose = config.choose if isinstance(config, EvaluationConfig) else None
        if choose is None or not isinstance(task, SweTask):
            raise ConfigError(
                f"rollout {rollout}: its task {task.id} has no repository, so tests of other "
                "rollouts cannot be run against its patch",
                remedy='set another `by` in [evaluation.choose], as "majority"',
            )
        candidates = await cross_tests.candidates(self._db, rollout)
        mine = next((n for n, each in enumerate(candidates) if each.rollout == rollout), None)
        if mine is None:  # it is played again
            return CrossTestCounts(num_tests=0, num_not_compared=0)
        seen = [await self._written(each, task) for each in candidates]
        work = _Work(rollout, candidates[mine].epoch, task, choose)
        pairs = list(_pairs(seen, mine, choose))
        await self._run(work, pairs)
        stored = await cross_tests.results(self._db, rollout, work.epoch)
        return CrossTestCounts(
            num_tests=len(stored),
            num_not_compared=sum(each.exit_code is None for each in stored),
        )

    async def _written(self, candidate: cross_tests.StoredCandidate, task: SweTask) -> WrittenPatch:
        commands = await cross_tests.commands(self._db, candidate.rollout, candidate.epoch)
        return await asyncio.to_thread(written, candidate.patch, commands, task.test_command)

    async def _run(self, work: _Work, pairs: list[TestedPair]) -> None:
        """Each that is not stored. One that fails for the sandbox holds up no other."""
        known = {
            (each.test, each.without_patch)
            for each in await cross_tests.results(self._db, work.rollout, work.epoch)
        }
        is_last = activity.info().attempt >= MAX_ATTEMPTS
        fault: Exception | None = None
        for pair in pairs:
            key = (pair.test.digest, pair.without_patch)
            if key in known:
                continue
            try:
                result = await self._one(work, pair)
            except SandboxRefused as refused:  # it would be the same in every sandbox
                result = StoredCrossTest(*key, None, str(refused))
            except SandboxError as error:
                if not is_last:
                    fault = fault or error
                    continue
                result = StoredCrossTest(*key, None, str(error))
            await cross_tests.put(self._db, work.rollout, work.epoch, result)
        if fault is not None:
            raise SandboxBroken(f"sandbox of a cross test failed: {fault}") from fault

    async def _one(self, work: _Work, pair: TestedPair) -> StoredCrossTest:
        async with self._place(work, pair) as place:
            ran = await self._environments.swe.run_written(
                work.task, pair.program, pair.test, work.choose.test_timeout_s, place
            )
        return StoredCrossTest(pair.test.digest, pair.without_patch, ran.exit_code, ran.note)

    @asynccontextmanager
    async def _place(self, work: _Work, pair: TestedPair) -> AsyncIterator[Place]:
        """For a sandbox of this pair and attempt, leased while it lives."""
        facts = await self._cache.rollout(work.rollout)
        attempt = activity.info().attempt
        use = f"{'base' if pair.without_patch else 'cross'}{attempt}.{pair.test.digest[:8]}"
        name = work.rollout.replace("/", ".")
        sandbox = SandboxId(f"{name}.e{work.epoch}.{use}")

        async def lease(backend: str) -> None:
            await sandboxes.open_cross_lease(
                self._db, sandbox, work.rollout, work.epoch, node=self._node, backend=backend
            )

        labels = {"campaign": facts.campaign, "rollout": work.rollout, "node": self._node}
        try:
            async with naming(self._cache, self._node, work.rollout, sandbox):
                yield Place(sandbox, work.rollout, facts.config, labels, lease)
        finally:
            await sandboxes.close_lease(self._db, sandbox, self._node)


def _pairs(seen: list[WrittenPatch], mine: int, choose: ChooseConfig) -> Iterator[TestedPair]:
    """Those of candidate number `mine`: a patch without a program is the original code, which the
    tests' authors run."""
    of_each = counting(seen, choose.tests_per_rollout, choose.max_tests)
    by_others = {test.digest for tests in of_each[:mine] for test in tests}
    for test in of_each[mine]:
        if test.digest not in by_others:
            yield TestedPair(test, b"", without_patch=True)
    if seen[mine].program:
        for test in {test.digest: test for tests in of_each for test in tests}.values():
            yield TestedPair(test, seen[mine].program, without_patch=False)
