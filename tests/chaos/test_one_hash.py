"""A reproducible campaign has one fingerprint, whatever is killed: random faults of all roles.

Run by `make chaos`. `tests/chaos/fault_schedule.py` does the same to the quickstart, for longer.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.reproducibility import CampaignFingerprint
from tests.chaos import fault_schedule
from tests.chaos.fault_schedule import Role

NUM_SCHEDULES = int(os.environ.get("MAINSPRING_FAULT_SCHEDULES", "1"))
MAX_FAULTS = 6
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

[trainer]
device = "cpu"
num_steps = 3
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
options = { free_tokens = 8 }

[evaluation]
every_steps = 3
splits = ["heldout"]
greedy = false
"""


def mainspring(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "mainspring", *words], check=True, capture_output=True)


def finished(
    directory: Path, seed: int, roles: tuple[Role, ...], max_faults: int
) -> tuple[CampaignFingerprint, fault_schedule.Outcome]:
    file, home = directory / "campaign.toml", directory / f"home-{seed}"
    file.write_text(CAMPAIGN)
    try:
        outcome = fault_schedule.run(
            home,
            seed,
            ["train", str(file)],
            pause_s=(4.0, 10.0),
            roles=roles,
            max_faults=max_faults,
        )
        mainspring("up", "--home", str(home))
        found = fault_schedule.fingerprint(home, "one-hash")
    finally:
        mainspring("down", "--home", str(home))
    return CampaignFingerprint.model_validate(found), outcome


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(900 * (1 + NUM_SCHEDULES))
def test_a_campaign_has_one_hash_whatever_is_killed(tmp_path: Path) -> None:
    plain, _ = finished(tmp_path, 0, (), 0)
    assert plain.weights is not None and plain.deviations == []
    assert [step.step for step in plain.steps] == [1, 2, 3]
    assert all(step.batch and step.gradient and step.calls for step in plain.steps)
    for seed in range(1, NUM_SCHEDULES + 1):
        found, outcome = finished(tmp_path, seed, tuple(Role), MAX_FAULTS)
        faults = [(fault.role.value, round(fault.at_s)) for fault in outcome.faults]
        assert faults, "no fault hit anything"
        assert plain.difference(found) is None, (seed, faults, plain.difference(found))
        assert found.weights == plain.weights
