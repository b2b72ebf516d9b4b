"""`campaign cancel` at random moments of `mainspring train`, then the same command: it resumes.

Beside a busy core, with what people do in between: nothing, a second cancel, a signal to the
command, `down`, the next command before the first has left. What must hold: a command that left by
itself leaves nothing of the campaign alive; each start plays on; no step is done twice.
"""

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import func, select
from temporalio.service import RPCError

from cli.operations.machine.embedded_stack import StackInfo, temporary
from cli.operations.machine.supervisor import Supervisor
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs import still_alive
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tables.models import CallRow, GroupRow, RolloutRow
from infra.db.training import batches, policies, steps
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings
from mainspring.errors import DatabaseError, TemporalError
from mainspring.ids import campaign_id, campaign_workflow
from mainspring.status import CampaignStatus, GroupStatus, RolloutPhase
from mainspring.trajectories.samples import samples_of
from tests.waiting import until

NAME = campaign_id("again")
FILE = f"""
name = "{NAME}"
[tasks]
num_train = 16
num_heldout = 4
num_heldout_templates = 0
[agent]
step_limit = 3
kind = "bundled"
[policy]
engines = ["http://127.0.0.1:0"]
max_context = 512
max_new_tokens = 40
[trainer]
device = "cpu"
filter = "none"
num_steps = 400
groups_per_step = 2
group_size = 2
[trainer.optimizer]
name = "muon"
lr = 1e-3
[trainer.warm_start]
copy_steps = 2
copy_batch_size = 2
steps = 4
batch_size = 2
[evaluation]
every_steps = 2
greedy = false
"""
ROUNDS = int(os.environ.get("MAINSPRING_TEST_ROUNDS", "30"))
SEED = int(os.environ.get("MAINSPRING_TEST_SEED", "7"))
LONGEST_S = 20.0
"""After the first reply of a start, until it is cancelled: several steps."""
LEAVE_S = 240.0
REPLY_S = 300.0
BETWEEN = ("wait", "twice", "SIGKILL", "SIGTERM", "SIGINT", "down", "at once")
"""What is done after the cancel."""


@dataclass
class Trial:
    info: StackInfo
    file: Path
    log: Path
    db: Database
    figures: list[tuple[str, float, float]] = field(default_factory=list)
    """What was done in between, seconds until the command left, and from start to reply."""

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            log.write(f"\n--- {' '.join(words)}\n".encode())
            log.flush()
            return subprocess.Popen(
                [sys.executable, "-m", "mainspring", *words, "--home", str(self.info.home)],
                stdout=log,
                stderr=log,
                preexec_fn=_hears_interrupts,
            )

    def train(self) -> subprocess.Popen[bytes]:
        return self.command("train", str(self.file))

    async def do(self, *words: str) -> int:
        return await asyncio.to_thread(self.command(*words).wait)

    async def num_replies(self) -> int:
        try:
            async with self.db.transaction() as connection:
                statement = select(func.count()).select_from(CallRow)
                return await connection.scalar(statement) or 0
        except DatabaseError:
            return 0  # between `down` and the next command

    async def run_id(self) -> str | None:
        """Of the campaign's newest workflow."""
        try:
            client = await connect(load_settings(self.info.home), self.db)
            found = await launch.describe(client.get_workflow_handle(campaign_workflow(NAME)))
        except (DatabaseError, TemporalError, RPCError):
            return None  # between `down` and the next command
        return found.run_id if found else None

    async def next_reply(self, process: subprocess.Popen[bytes], ended: str | None) -> float:
        """Seconds until a reply for a workflow other than the `ended` one is stored."""
        begun = time.monotonic()
        before: int | None = None

        async def more() -> bool:
            nonlocal before
            assert process.poll() is None, self.log.read_text()[-4000:]
            if before is None:
                if await self.run_id() in (None, ended):
                    return False
                before = await self.num_replies()
            return await self.num_replies() > before

        await until(more, REPLY_S)
        return time.monotonic() - begun

    async def left(self, process: subprocess.Popen[bytes]) -> float:
        begun = time.monotonic()
        await asyncio.wait_for(asyncio.to_thread(process.wait), LEAVE_S)
        return time.monotonic() - begun


def _hears_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@asynccontextmanager
async def busy_core() -> AsyncIterator[None]:
    spinning = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
    try:
        yield
    finally:
        spinning.kill()
        await spinning.wait()


async def nothing_lives(trial: Trial) -> None:
    client = await connect(load_settings(trial.info.home), trial.db)
    alive = await still_alive.look(trial.db, client, NAME)
    assert not alive, f"{alive}; {trial.log.read_text()[-4000:]}"
    async with trial.db.transaction() as connection:
        playing = await connection.scalar(
            select(func.count()).where(
                RolloutRow.phase != RolloutPhase.DONE,
                RolloutRow.run_id.is_not(None),
                # An evaluation of the campaign stays open until it is complete.
                RolloutRow.group_id.in_(
                    select(GroupRow.id).where(GroupRow.status != GroupStatus.RUNNING)
                ),
            )
        )
    assert playing == 0
    record = await campaigns.get(trial.db, NAME)
    assert record.status is CampaignStatus.CANCELLED


async def in_between(
    trial: Trial, process: subprocess.Popen[bytes], what: str
) -> tuple[subprocess.Popen[bytes], float]:
    """The next command, and how long the one before took to leave."""
    if what == "at once":
        following = trial.train()
        return following, await trial.left(process)
    if what == "twice":
        await trial.do("campaign", "cancel", NAME)
    if what.startswith("SIG"):
        process.send_signal(signal.Signals[what])
    if what == "down":
        # The command would start them again, unless it has left by now.
        code = await trial.do("down")
        assert code == 2 or process.poll() is not None
        process.kill()
    took_s = await trial.left(process)
    if what in ("wait", "twice"):
        assert process.returncode == 4, trial.log.read_text()[-4000:]
        await nothing_lives(trial)
    if what == "down":
        assert await trial.do("down") == 0
    return trial.train(), took_s


async def every_step_once(db: Database) -> int:
    done = await steps.list_steps(db, NAME)
    newest = await policies.latest_policy(db, NAME)
    assert newest is not None
    versions = [policy.version for policy in await policies.list_policies(db, NAME)]
    assert versions == list(range(newest.version + 1))
    assert [each.step for each in done][: newest.version] == list(range(1, newest.version + 1))
    used = [g for each in done for g in await steps.step_groups(db, NAME, each.step)]
    assert len(used) == len(set(used))
    for group in await batches.load_groups(db, used[-8:]):
        for rollout in group.rollouts:
            samples_of(rollout.id, rollout.calls)
    return newest.version


@pytest.fixture
async def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trial]:
    try:
        await BwrapBackend(tmp_path / "sandboxes").probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    monkeypatch.setenv("MAINSPRING_NODE_ID", "again")
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    file = tmp_path / "campaign.toml"
    file.write_text(FILE)
    async with temporary("mainspring-again-") as info, Database.open(info.database_url) as db:
        trial = Trial(info, file, tmp_path / "train.log", db)
        try:
            yield trial
        finally:
            print(trial.log.read_text()[-6000:] if trial.log.exists() else "")
            await asyncio.to_thread(Supervisor(info.home, NAME).stop)


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(ROUNDS * 400)
async def test_a_campaign_is_cancelled_and_started_again(trial: Trial) -> None:
    chance = random.Random(SEED)
    process, ended = trial.train(), None
    try:
        async with busy_core():
            for number in range(ROUNDS):
                waited_s = await trial.next_reply(process, ended)
                if trial.figures:
                    what, took_s, _ = trial.figures[-1]
                    trial.figures[-1] = (what, took_s, waited_s)
                    shown = (
                        f"{what:8} left after {took_s:5.1f} s, first reply after {waited_s:5.1f} s"
                    )
                    print(f"{number:2} {shown}", flush=True)
                await asyncio.sleep(chance.uniform(0.0, LONGEST_S))
                ended = await trial.run_id()
                what = BETWEEN[number % len(BETWEEN)]
                assert await trial.do("campaign", "cancel", NAME) == 0, trial.log.read_text()
                process, took_s = await in_between(trial, process, what)
                trial.figures.append((what, took_s, 0.0))
            what, took_s, _ = trial.figures[-1]
            trial.figures[-1] = (what, took_s, await trial.next_reply(process, ended))
        process.send_signal(signal.SIGTERM)
        await trial.left(process)
        num_steps = await every_step_once(trial.db)
    finally:
        process.kill()
        process.wait()
    replies = sorted(waited_s for _, _, waited_s in trial.figures)
    print(
        f"{len(replies)} starts, {num_steps} steps; start to first reply: median "
        f"{statistics.median(replies):.1f} s, longest {replies[-1]:.1f} s"
    )
