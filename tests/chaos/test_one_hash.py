"""A reproducible campaign has one fingerprint, whatever is killed: random faults of all roles.

One short schedule in `make test`; schedules until NUM_FAULTS have hit in `make chaos`.
`tests/chaos/fault_schedule.py` does the same to the quickstart.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.status import Publish
from tests.chaos import fault_schedule

NUM_FAULTS = int(os.environ.get("MAINSPRING_FAULTS", "100"))
MIN_SCHEDULES = 5
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
kind = "bundled"
step_limit = 4
max_format_errors = 1
command_timeout_s = 10.0

[policy]
engines = ["http://127.0.0.1:0"]
max_context = 512
max_new_tokens = 40
publish = "{publish}"

[trainer]
device = "cpu"
num_steps = {num_steps}
groups_per_step = 2
group_size = 4
filter = "none"

[trainer.optimizer]
name = "muon"
lr = 1e-3

[trainer.warm_start]
copy_steps = 5
steps = 25

# A model this small solves nothing: with the outcome alone nothing would be learned.
[[reward.parts]]
name = "length"
options = {{ free_tokens = 8 }}

[evaluation]
every_steps = {num_steps}
splits = ["heldout"]
greedy = false
"""


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


def finished(
    directory: Path, schedule: Schedule
) -> tuple[CampaignFingerprint, fault_schedule.Outcome]:
    file, home = directory / "campaign.toml", directory / f"home-{schedule.seed}"
    file.write_text(CAMPAIGN.format(num_steps=schedule.num_steps, publish=schedule.publish))
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


def undisturbed(directory: Path, num_steps: int) -> CampaignFingerprint:
    plain, _ = finished(directory, Schedule(num_steps))
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


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(2400)
def test_weights_that_ranks_send_are_those_of_the_files_whatever_is_killed(tmp_path: Path) -> None:
    plain = undisturbed(tmp_path, SHORT_STEPS)
    shutil.rmtree(tmp_path / "home-0")
    for seed in (0, 5):
        schedule = Schedule(SHORT_STEPS, seed, max_faults=6, publish=Publish.COLLECTIVE)
        assert bool(num_faults_under(tmp_path, schedule, plain)) is bool(seed)
