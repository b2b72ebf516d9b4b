"""A campaign whose fields change thirty times at random moments, while its processes and the
commands that change it are killed: each change counts from one step, in the store, in the weights
and in the fingerprint.

Real processes, real weights. The reward is a number that each reply has by itself, since a model
this small solves nothing.
"""

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.reading import fingerprints
from infra.db.runs import campaigns, changes
from infra.temporal.connection import connect
from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import LENGTH, FieldChange
from mainspring.config.files.layers import assignments, keys_of
from mainspring.config.settings import Settings, load_settings
from mainspring.ids import CampaignId
from tests.chaos.small_run import TIMEOUT_S, SmallRun, small_run
from tests.chaos.test_forked import parent, played
from tests.chaos.test_retrained import ENVIRONMENT

NUM_CHANGES = 30
RATE, LIMIT = "trainer.optimizer.muon_lr", "agent.command_timeout_s"
CHANGES_OF_A_STEP = 5
"""At most so many changes are made before one more step has to be done."""
MANY_STEPS = 200
"""More than are played: the last change ends the campaign."""


def campaign(name: str) -> CampaignConfig:
    config = parent()
    trainer = config.trainer.model_copy(update={"num_steps": MANY_STEPS})
    evaluation = config.evaluation.model_copy(update={"every_steps": MANY_STEPS})
    return config.model_copy(update={"name": name, "trainer": trainer, "evaluation": evaluation})


def values_of(number: int) -> dict[str, float]:
    """Values that no other change has."""
    return {RATE: round(0.001 + number * 1e-4, 6), LIMIT: 10.0 + number}


class Changes:
    """`campaign set`, as a person would run it; some of them are killed."""

    def __init__(self, stack: StackInfo, name: CampaignId, rng: random.Random) -> None:
        self._stack = stack
        self._name = name
        self._rng = rng
        self.made: list[int] = []
        self.killed: list[int] = []

    async def make(self, number: int) -> None:
        words = [f"{field}={value}" for field, value in values_of(number).items()]
        command = [sys.executable, "-m", "mainspring", "--home", str(self._stack.home)]
        command += ["campaign", "set", self._name, *words, "--yes"]
        is_killed = self._rng.random() < 0.4
        limit_s = self._rng.uniform(0.5, 3.0) if is_killed else 120.0
        try:
            ran = await asyncio.to_thread(
                subprocess.run,
                command,
                capture_output=True,
                text=True,
                env=ENVIRONMENT,
                timeout=limit_s,  # then it is killed
            )
        except subprocess.TimeoutExpired:
            assert is_killed, command
            self.killed.append(number)
        else:
            assert ran.returncode == 0, ran.stderr
            self.made.append(number)


async def changed_at_random(
    stack: StackInfo, db: Database, settings: Settings, name: CampaignId, folder: Path
) -> Changes:
    rng = random.Random(5)
    made = Changes(stack, name, rng)
    client = await connect(settings, db)
    async with small_run(db, client, settings, campaign(name), folder) as run:
        await run.step_planned(1)
        faults = asyncio.create_task(_kill_at_random(run, random.Random(6)))
        for number in range(NUM_CHANGES):
            if number % CHANGES_OF_A_STEP == 0:  # however slow the steps are
                await run.step_done(number // CHANGES_OF_A_STEP)
            await asyncio.sleep(rng.uniform(0.0, 3.0))
            await made.make(number)
        faults.cancel()
        found = await changes.pending(db, name, assignments([f"{RATE}=0.01"]), "test")
        ends = max(change.from_step for change in (*found.changes, *found.record.changes)) + 1
        await changes.add(db, name, assignments([f"{LENGTH}={ends}"]), "test")
    return made


async def _kill_at_random(run: SmallRun, rng: random.Random) -> None:
    """Each member in turn, in an order that is drawn anew for each round."""
    while True:
        for name in rng.sample(sorted(run.fleet.members), len(run.fleet.members)):
            await asyncio.sleep(rng.uniform(3.0, 9.0))
            if run.fleet.members[name].pid is not None:
                run.kill(name)


async def undisturbed(
    db: Database,
    settings: Settings,
    name: CampaignId,
    rows: Sequence[FieldChange],
    folder: Path,
) -> CampaignFingerprint:
    """A campaign with the same changes from the same steps, all made before it starts."""
    config = campaign(name)
    await campaigns.create(db, config)
    for row in rows:
        await changes.add(db, name, [(keys_of(row.field), row.after)], "test", row.from_step)
    return await played(db, settings, config, folder)


@pytest.mark.chaos
@pytest.mark.timeout(2 * TIMEOUT_S)
async def test_each_of_thirty_changes_counts_from_one_step(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    settings = load_settings(stack.home)
    name = CampaignId("changed-often")
    async with open_database(settings) as db:
        made = await changed_at_random(stack, db, settings, name, tmp_path / "disturbed")
        record = await campaigns.get(db, name)
        rows = record.changes
        _check_rows(rows, made)
        for step in range(1, training(record.config).trainer.num_steps + 1):
            counting = {row.field: row.after for row in rows if row.from_step <= step}
            config = training(record.at(step))
            if RATE in counting:
                assert config.trainer.optimizer.muon_lr == counting[RATE], step
                assert config.agent.command_timeout_s == counting.get(LIMIT, 30.0), step
        found = await fingerprints.read(db, record)
        told = [(row.field, row.after, row.from_step) for row in rows]
        assert [(each.field, each.value, each.from_step) for each in found.changes] == told
        assert len({step.weights for step in found.steps}) == len(found.steps), found
        print(f"\n{len(made.made)} made, killed: {made.killed}; changes from steps: {told}")
        control = await undisturbed(
            db, settings, CampaignId("changed-before"), rows, tmp_path / "undisturbed"
        )
        assert control.difference(found) is None and control.weights == found.weights


def _check_rows(rows: Sequence[FieldChange], made: Changes) -> None:
    """A command made both rows or none, once; a later one counts from no earlier step."""
    by_value = {
        (field, value): n for n in range(NUM_CHANGES) for field, value in values_of(n).items()
    }
    stored = Counter(by_value[row.field, row.after] for row in rows if row.field != LENGTH)
    assert set(stored.values()) == {2}, stored
    assert set(made.made) <= set(stored) <= {*made.made, *made.killed}
    assert made.killed, "no command was killed: raise the share"
    for field in (RATE, LIMIT):
        of_field = [row for row in rows if row.field == field]
        assert [row.from_step for row in of_field] == sorted(row.from_step for row in of_field)
        assert len({row.from_step for row in of_field}) > 3, "steps are slower than all changes"
