"""Pages of runs that train no policy by rollouts, and addresses that are none."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from store_records import begin_campaign
from viewed import Told, home_of, play, task_of, viewer_of

from infra.db.database import Database
from infra.db.rollouts import groups
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import sft
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.sft import SftConfig
from mainspring.config.tasks import TasksConfig
from mainspring.ids import CampaignId, TaskId, rollout_id, run_group_id
from mainspring.status import GroupKind, Player, Unverified, Verdict
from mainspring.trajectories.imitation import to_imitate
from mainspring.trajectories.samples import Sample


async def test_a_verification_tells_which_tasks_are_sound_and_why_others_are_not(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    run = CampaignId("checked")
    await tasks.put_tasks(db, [task_of("sound"), task_of("broken")])
    config = VerificationConfig(
        name=run,
        tasks=TasksConfig(source="made-up", unverified=Unverified.USE),
        policy=PolicyConfig(model="scripted", max_context=1000, max_new_tokens=100),
        split="train",
    )
    await campaigns.create(db, config)
    group = run_group_id(run, 0)
    given = [
        (task, player) for task in ("sound", "broken") for player in (Player.GOLD, Player.EMPTY)
    ]
    made = [
        NewRollout(rollout_id(group, n), TaskId(task), n, 0.0, player)
        for n, (task, player) in enumerate(given)
    ]
    await groups.create_group(
        db, group, run, GroupKind.EVAL, index=0, policy_version=0, split="train", rollouts=made
    )
    for rollout, verdict in zip(
        made,
        (Verdict.RESOLVED, Verdict.NOT_RESOLVED, Verdict.NOT_RESOLVED, Verdict.NOT_RESOLVED),
        strict=True,
    ):
        note = "the fix is not the fix" if rollout.task == "broken" else ""
        await play(db, rollout.id, Told(note=note), verdict=verdict)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        results = (await client.get("/c/checked.json")).json()["results"]
        page = (await client.get("/c/checked")).text
        task = (await client.get("/t/broken.json")).json()
        patch = await client.get(f"/r/{made[0].id}")
    assert results["verifications"] == {"gold_fails": 1, "verified": 1}
    assert [each["task"] for each in results["tasks"]] == ["broken", "sound"]
    assert "the fix is not the fix" in page and "gold patches 1/2 pass" in page
    assert task["verification"] == "gold_fails"
    assert patch.status_code == 200


async def _samples() -> AsyncIterator[Sample]:
    ids = np.arange(8, dtype=np.int32)
    for n in range(3):
        yield to_imitate(f"file:{n}", n, ids, np.array([False] * 4 + [True] * 4))


async def test_a_supervised_run_shows_its_samples_and_its_loss(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    config = SftConfig.model_validate(
        {
            "name": "imitates",
            "data": {"sources": [{"campaign": "first"}]},
            "trainer": {"device": "cpu"},
        }
    )
    await sft.create(db, config, _samples(), lambda data: data)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        page = (await client.get("/c/imitates")).text
        rollouts = await client.get("/c/imitates/rollouts")
        fields = (await client.get("/c/imitates/config")).text
        compared = await client.get("/compare?c=imitates&c=first")
    assert "samples" in page and "No step has finished yet" in page and "pass@" not in page
    assert rollouts.status_code == 200 and "No rollout is stored yet" in rollouts.text
    assert "data.sources" in fields and compared.status_code == 200


@pytest.mark.parametrize(
    "address",
    [
        "/t/a%00b",
        "/r/a%00b",
        "/o/a%00b",
        "/c/first/rollouts?task=%00",
        "/c/first/rollouts?after=%00",
        "/c/first/rollouts?after=nowhere",
        "/c/first/steps/x",
        "/c/first/steps/99999999999999999999",
        "/c/first/groups/%0a",
        "/r/first/g000000/000?from=99999999999999999999",
        "/compare?r=first&r=first",
        "/live/c/nowhere",
        "/c/%2e%2e/%2e%2e/etc/passwd",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/w/%00",
    ],
)
async def test_an_address_that_is_none_is_refused_with_a_sentence(
    db: Database, store_url: str, tmp_path: Path, address: str
) -> None:
    await begin_campaign(db)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        answer = await client.get(address)
    assert answer.status_code in (307, 400, 404), answer.text
    assert "Traceback" not in answer.text and "starlette" not in answer.text
