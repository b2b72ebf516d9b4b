"""A reproducible campaign has one fingerprint, whatever is killed: random faults of all roles.

One short schedule in `make test`; schedules until NUM_FAULTS have hit in `make chaos`.
`tests/chaos/fault_schedule.py` does the same to the quickstart.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import func, select

from infra.db.connect import open_database
from infra.db.tables.models import CallRow
from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.config.settings import load_settings
from mainspring.status import Publish
from tests.chaos import fault_schedule
from tests.chaos.endpoint_process import EndpointProcess

NUM_FAULTS = int(os.environ.get("MAINSPRING_FAULTS", "100"))
MIN_SCHEDULES = 5
JUDGE_SEEDS = (1, 2, 3)
JUDGE_LIVES_S = 7.0
SHORT_STEPS = 2
LONG_STEPS = 8
CAMPAIGN = """
name = "one-hash"
schedule = "reproducible"

[tasks]
num_train = 16
num_heldout = 4
num_heldout_templates = 0

[agent]
step_limit = 5
max_format_errors = 1
command_timeout_s = 10.0
{agent}
[policy]
engines = ["http://127.0.0.1:0"]
max_new_tokens = 40
publish = "{publish}"
{policy}

[trainer]
device = "cpu"
num_steps = {num_steps}
groups_per_step = 2
group_size = 4
filter = "none"
{trainer}
[trainer.optimizer]
name = "muon"
lr = 1e-3

[evaluation]
every_steps = {num_steps}
splits = ["heldout"]
greedy = false
"""
PLAIN = {
    "agent": 'kind = "bundled"',
    "policy": "max_context = 512",
    "trainer": "",
    "rest": """
[trainer.warm_start]
copy_steps = 5
steps = 25

# A model this small solves nothing: with the outcome alone nothing would be learned.
[[reward.parts]]
name = "length"
options = { free_tokens = 8 }
""",
}
JUDGED = {
    "agent": """
kind = "tools"
tools = ["bash", "submit"]
prompts = { system = "Fix the bug.", task = "{{ issue }}" }
context = { kind = "summarise", summary_prompt = "Sum up.", summary_tokens = 24 }
""",
    "policy": "max_context = 160",
    "trainer": 'advantage = "step_wise"',
    "rest": """
[trainer.warm_start]
copy_steps = 60
copy_batch_size = 32
steps = 160
batch_size = 8

[judges.quality]
url = "http://127.0.0.1:{port}/v1"
model = "m"
votes = 2
retries = 100
request_timeout_s = 20.0
deterministic = true

[[reward.parts]]
name = "outcome"

[[reward.parts]]
name = "judge"
judge = "quality"
of = "turns"
weight = 0.5
""",
}
"""It calls tools, sums up what it did, and is judged by turns."""


def mainspring(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "mainspring", *words], check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Of faults, drawn from the seed; none of them for the seed 0."""

    num_steps: int
    seed: int = 0
    pause_s: tuple[float, float] = (4.0, 10.0)
    max_faults: int | None = None
    publish: Publish = Publish.DISK
    campaign: Mapping[str, str] = field(default_factory=lambda: PLAIN, compare=False)

    @property
    def text(self) -> str:
        """The campaign's file."""
        filled = CAMPAIGN.format(
            num_steps=self.num_steps,
            publish=self.publish,
            agent=self.campaign["agent"],
            policy=self.campaign["policy"],
            trainer=self.campaign["trainer"],
        )
        return filled + self.campaign["rest"]


def finished(
    directory: Path, schedule: Schedule
) -> tuple[CampaignFingerprint, fault_schedule.Outcome]:
    file, home = directory / "campaign.toml", directory / f"home-{schedule.seed}"
    file.write_text(schedule.text)
    try:
        outcome = fault_schedule.run(
            home,
            schedule.seed,
            ["train", str(file)],
            pause_s=schedule.pause_s,
            max_faults=schedule.max_faults if schedule.seed else 0,
        )
        mainspring("up", "--home", str(home))
        found = fault_schedule.fingerprint(home, "one-hash")
    finally:
        mainspring("down", "--home", str(home))
    return CampaignFingerprint.model_validate(found), outcome


def undisturbed(
    directory: Path, num_steps: int, campaign: Mapping[str, str] = PLAIN
) -> CampaignFingerprint:
    plain, _ = finished(directory, Schedule(num_steps, campaign=campaign))
    assert plain.weights is not None and plain.deviations == []
    assert [step.step for step in plain.steps] == list(range(1, num_steps + 1))
    assert all(step.batch and step.gradient and step.calls for step in plain.steps)
    return plain


def num_faults_under(directory: Path, schedule: Schedule, plain: CampaignFingerprint) -> int:
    found, outcome = finished(directory, schedule)
    faults = [(fault.role.value, round(fault.at_s)) for fault in outcome.faults]
    assert plain.difference(found) is None, (schedule, faults, plain.difference(found))
    assert found.weights == plain.weights
    return len(faults)


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_a_campaign_has_one_hash_whatever_is_killed(tmp_path: Path) -> None:
    plain = undisturbed(tmp_path, SHORT_STEPS)
    schedule = Schedule(SHORT_STEPS, seed=1, pause_s=(3.0, 8.0), max_faults=5)
    assert num_faults_under(tmp_path, schedule, plain) > 1, "no fault hit anything"


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_campaign_has_one_hash_under_a_hundred_faults(tmp_path: Path) -> None:
    plain = undisturbed(tmp_path, LONG_STEPS)
    num_faults = seed = 0
    while num_faults < NUM_FAULTS or seed < MIN_SCHEDULES:
        seed += 1
        hits = num_faults_under(tmp_path, Schedule(LONG_STEPS, seed), plain)
        assert hits, "no fault hit anything"
        num_faults += hits
        shutil.rmtree(tmp_path / f"home-{seed}", ignore_errors=True)


@contextmanager
def killed_again_and_again(endpoint: EndpointProcess) -> Iterator[list[float]]:
    """The times of the kills. It is away for a second after each."""
    is_over, killed = threading.Event(), list[float]()

    def kill() -> None:
        while not is_over.wait(JUDGE_LIVES_S):
            endpoint.kill()
            killed.append(time.monotonic())
            is_over.wait(1.0)
            endpoint.start()

    endpoint.start()
    killing = threading.Thread(target=kill)
    killing.start()
    try:
        yield killed
    finally:
        is_over.set()
        killing.join()
        endpoint.kill()


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(5400)
def test_one_that_is_judged_has_one_hash_though_its_judge_is_killed_as_well(tmp_path: Path) -> None:
    judge = EndpointProcess("tests.chaos.scripted_judge", (str(tmp_path / "votes"),))
    campaign = JUDGED | {"rest": JUDGED["rest"].replace("{port}", str(judge.port))}
    judge.start()
    try:
        plain = undisturbed(tmp_path, SHORT_STEPS, campaign)
    finally:
        judge.kill()
    num_votes = len((tmp_path / "votes").read_text().splitlines())
    assert num_votes > 50, "few turns were judged"
    assert num_summaries(tmp_path / "home-0") > 10, "few rollouts were summed up"
    for seed in JUDGE_SEEDS:
        with killed_again_and_again(judge) as killed:
            schedule = Schedule(SHORT_STEPS, seed, max_faults=12, campaign=campaign)
            assert num_faults_under(tmp_path, schedule, plain) > 3, "few faults hit anything"
            assert len(killed) > 3
        shutil.rmtree(tmp_path / f"home-{seed}", ignore_errors=True)


def num_summaries(home: Path) -> int:
    """Replies that are summaries, in a stack that is started for it."""
    mainspring("up", "--home", str(home))
    try:
        return asyncio.run(_num_summaries(home))
    finally:
        mainspring("down", "--home", str(home))


async def _num_summaries(home: Path) -> int:
    async with open_database(load_settings(home)) as db, db.transaction() as connection:
        summaries = select(func.count()).where(CallRow.is_summary)
        return await connection.scalar(summaries) or 0


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(2400)
def test_weights_that_ranks_send_are_those_of_the_files_whatever_is_killed(tmp_path: Path) -> None:
    plain = undisturbed(tmp_path, SHORT_STEPS)
    shutil.rmtree(tmp_path / "home-0")
    for seed in (0, 5):
        schedule = Schedule(SHORT_STEPS, seed, max_faults=6, publish=Publish.COLLECTIVE)
        assert bool(num_faults_under(tmp_path, schedule, plain)) is bool(seed)
