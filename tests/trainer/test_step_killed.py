"""A trainer killed anywhere in a step: the curve is that of an undisturbed campaign, digit for
digit, no version is made twice and no directory is left half-written.

Every second version has a checkpoint, so that what was trained since is trained again.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.db.database import Database
from infra.db.rollouts import groups, rollouts, turns
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies, steps
from infra.policy.model.weight_files import weights_digest
from mainspring.artifacts import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId, TaskId, group_id, rollout_id
from mainspring.status import GroupKind, StepStatus, StopReason, Verdict
from mainspring.tasks.swe_task import SweTask
from mainspring.training.step_metrics import MACHINE_NAMES
from mainspring.trajectories.turns import Call, VersionSpan
from tests.trainer.conftest import VOCAB_SIZE, MakeModel
from tests.trainer.deadly_engine import ARMED_AT, DRIVER_POINTS, RANK_POINTS
from trainer.engines import checkpoint

NUM_STEPS = 4
GROUP_SIZE = 3
TIMEOUT_S = 900.0
SOME = {"1": ["rank after backward", "driver after rename"], "3": ["driver before commit"]}
LATE = {"2": ["rank after update", "rank within its share"], "3": ["driver before commit"]}
ALL = {
    "1": [
        "rank before forward",
        "rank load",
        "driver before load",
        "driver after rename",
        "driver after commit",
    ],
    "2": [
        "rank between forward and backward",
        "driver after load",
        "rank before its share",
        "rank within its share",
        "driver before rename",
        "driver before prune",
    ],
    "3": [
        "rank after backward",
        "rank before update",
        "driver before step",
        "driver before save",
        "raylet within step",
        "rank before export",
        "driver before commit",
    ],
    "4": ["rank after update", "driver after step", "rank after export"],
}


def config(name: str, model: Path, **trainer: object) -> CampaignConfig:
    return CampaignConfig.model_validate(
        {
            "name": name,
            "policy": {"model": str(model)},
            "trainer": {
                "device": "cpu",
                "engine": "tests.trainer.deadly_engine:DeadlyEngine",
                "num_steps": NUM_STEPS,
                "groups_per_step": 1,
                "group_size": GROUP_SIZE,
                "checkpoint_every": 2,
                "gap": {"max": 1000.0},
                "optimizer": {"lr": 1e-3, "warmup_steps": 0},
                **trainer,
            },
        }
    )


async def stored(db: Database, name: str, model: Path, **trainer: object) -> CampaignId:
    """A campaign with the groups of all its steps, alike in each campaign."""
    campaign = CampaignId(name)
    task = SweTask(
        id=TaskId("t"),
        source="made-up",
        split="train",
        issue="Fix.",
        files={"a.py": ""},
        test_command="true",
    )
    await tasks.put_tasks(db, [task])
    await campaigns.create(db, config(name, model, **trainer))
    for index in range(NUM_STEPS):
        group = group_id(campaign, index)
        rng = np.random.default_rng(index)
        new = [groups.NewRollout(rollout_id(group, n), task.id, n, 1.0) for n in range(GROUP_SIZE)]
        await groups.create_group(
            db,
            group,
            campaign,
            GroupKind.TRAIN,
            index=index,
            task=task.id,
            policy_version=0,
            split="train",
            rollouts=new,
        )
        for n, rollout in enumerate(new):
            claim = await rollouts.claim(db, rollout.id, "run")
            await turns.put_call(db, rollout.id, claim.epoch, call(rng, index))
            await rollouts.finish(
                db,
                rollout.id,
                claim.epoch,
                stop_reason=StopReason.SUBMITTED,
                verdict=Verdict.NOT_RESOLVED if n else Verdict.RESOLVED,
                reward=0.0 if n else 1.0,
                fault=None,
                num_turns=1,
                phase_s={},
            )
        await groups.finish_group(db, group)
    return campaign


def call(rng: np.random.Generator, version: int) -> Call:
    prompt, reply = rng.integers(0, VOCAB_SIZE, 8), rng.integers(0, VOCAB_SIZE, 24)
    return Call(
        number=0,
        parent=None,
        prompt_start=0,
        prompt_ids=tuple(prompt.tolist()),
        completion_ids=tuple(reply.tolist()),
        logprobs=tuple((-4.5 + 0.1 * rng.standard_normal(24)).tolist()),
        spans=(VersionSpan(version, 0, 24),),
        text="",
        finish_reason="stop",
        latency_s=0.1,
    )


def train(url: str, home: Path, campaign: CampaignId, points: dict[str, list[str]]) -> list[str]:
    """Keep a trainer running until the campaign is trained; how each process ended."""
    arguments = [url, str(home), campaign, json.dumps(points)]
    environment = os.environ | {
        ARMED_AT: str(home / "armed"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    home.mkdir(exist_ok=True)
    ends: list[str] = []
    while not ends or ends[-1] != "0":
        began = time.monotonic()
        with (home / "trainer.log").open("a") as log:
            code = subprocess.run(
                [sys.executable, "-m", "tests.trainer.killed_trainer", *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                timeout=TIMEOUT_S,
            ).returncode
        print(f"a trainer ended with {code} after {time.monotonic() - began:.1f} s", flush=True)
        ends.append(str(code))
        assert code in (0, 3, -signal.SIGKILL), (home / "trainer.log").read_text()[-3000:]
    said = re.findall(r"is held after ([\d.]+) s", (home / "trainer.log").read_text())
    print(f"seconds until a started trainer, or its new ranks, held a version: {said}", flush=True)
    return ends


async def curve(db: Database, campaign: CampaignId) -> list[dict[str, Any]]:
    done = await steps.list_steps(db, campaign)
    assert all(step.status is StepStatus.DONE for step in done)
    return [{n: v for n, v in step.metrics.items() if n not in MACHINE_NAMES} for step in done]


async def compared(
    db: Database,
    url: str,
    tmp_path: Path,
    model: Path,
    points: dict[str, list[str]],
    **trainer: object,
) -> None:
    calm, killed = [await stored(db, name, model, **trainer) for name in ("calm", "killed")]
    homes = {name: tmp_path / name for name in (calm, killed)}
    assert train(url, homes[calm], calm, {}) == ["0"]
    train(url, homes[killed], killed, points)
    hit = {path.name.removeprefix("hit ") for path in (homes[killed] / "armed").glob("hit *")}
    assert hit == {point for each in points.values() for point in each}
    assert await curve(db, killed) == await curve(db, calm)
    for campaign, home in homes.items():
        found = await policies.list_policies(db, campaign)
        assert [each.version for each in found] == list(range(NUM_STEPS + 1))
        assert [each.checkpoint is not None for each in found] == [True, False, True, False, True]
        folder = layout.policy(home, campaign, 0).parent
        assert sorted(path.name for path in folder.iterdir()) == [
            f"v{version:05d}" for version in (0, 2, 3, 4)
        ]
        record = await campaigns.get(db, campaign)
        for directory in folder.iterdir():
            origin = checkpoint.Origin(
                campaign=campaign, uid=record.uid, config_digest=record.config_digest
            )
            checkpoint.verify(directory, checkpoint.read(directory, origin))
        assert not list(layout.batches(home, campaign).glob("*"))
    weights = [
        weights_digest(layout.policy(home, name, NUM_STEPS) / "hf") for name, home in homes.items()
    ]
    assert weights[0] == weights[1]


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT_S)
async def test_a_step_survives_kills_of_rank_and_driver(
    db: Database, store_url: str, tmp_path: Path, make_model: MakeModel
) -> None:
    await compared(db, store_url, tmp_path, make_model()[1], SOME)


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT_S)
async def test_a_critic_is_that_of_an_undisturbed_campaign(
    db: Database, store_url: str, tmp_path: Path, make_model: MakeModel
) -> None:
    """Killed when the policy has moved and its critic has not, and with half a checkpoint."""
    critic = {"advantage": "gae", "filter": "none", "critic": {"lr": 1e-3}}
    await compared(db, store_url, tmp_path, make_model()[1], LATE, **critic)
    for campaign in ("calm", "killed"):
        done = await curve(db, CampaignId(campaign))
        assert all(step["critic_grad_norm"] > 0 for step in done)
        assert done[-1]["value_mean"] != 0.0


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT_S)
async def test_ranks_that_share_a_model_by_fsdp_survive_kills(
    db: Database, store_url: str, tmp_path: Path, make_model: MakeModel
) -> None:
    """The first to reach a point is killed, and the other waits for it in a collective."""
    engine = {"engine": "tests.trainer.deadly_engine:DeadlyFsdp", "data_parallel": 2}
    await compared(db, store_url, tmp_path, make_model()[1], LATE, **engine)


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
async def test_a_step_survives_a_kill_at_each_of_its_points(
    db: Database, store_url: str, tmp_path: Path, make_model: Callable[..., Any]
) -> None:
    named = {point for each in ALL.values() for point in each}
    assert named == {*RANK_POINTS, *DRIVER_POINTS}
    await compared(db, store_url, tmp_path, make_model()[1], ALL)
