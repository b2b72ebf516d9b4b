"""A campaign that was forked: with the same settings its fork has the same weights, bit for bit.

Real processes, real weights. The reward is a number that each reply has by itself, since a model
this small solves nothing.
"""

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest

from cli.operations.keeping import campaign_fork
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.reading import fingerprints
from infra.db.runs import campaigns
from infra.db.training import discards, policies
from infra.temporal.connection import connect
from mainspring.algorithms.schedule import Schedule
from mainspring.artifacts import layout
from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.layers import assignments
from mainspring.config.reward import RewardConfig
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import ConfigError, UsageError
from mainspring.ids import CampaignId
from mainspring.rewards.scoring import Outcome
from mainspring.training.training_faults import CheckpointUnusable
from tests.chaos.small_run import TIMEOUT_S, small_campaign, small_run

PARENT = CampaignId("forked-parent")
AT = 2


def by_its_words(outcome: Outcome) -> float:
    """A reward between 0 and 1 that follows from what the policy wrote."""
    return zlib.crc32("".join(outcome.replies).encode()) % 100 / 100


def parent() -> CampaignConfig:
    config = small_campaign()
    trainer = config.trainer.model_copy(update={"num_steps": 4, "keep_checkpoints": 9})
    reward = RewardConfig.model_validate(
        {"parts": [{"name": "tests.chaos.test_forked:by_its_words"}]}
    )
    changed = {"name": PARENT, "schedule": Schedule.REPRODUCIBLE, "trainer": trainer}
    return config.model_copy(update=changed | {"reward": reward})


async def played(
    db: Database, settings: Settings, config: CampaignConfig, folder: Path
) -> CampaignFingerprint:
    client = await connect(settings, db)
    async with small_run(db, client, settings, config, folder) as run:
        await run.step_done(1)
    return await fingerprints.read(db, await campaigns.get(db, CampaignId(config.name)))


async def fork(
    db: Database, settings: Settings, name: str, at: int | None, *values: str
) -> CampaignConfig:
    made = await campaign_fork.fork(db, settings.home, PARENT, at, name, assignments(values))
    assert made.campaign == name
    return training((await campaigns.get(db, CampaignId(name))).config)


@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_a_fork_with_the_same_settings_has_the_parents_weights(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    settings = load_settings(stack.home)
    async with open_database(settings) as db:
        config = parent()
        whole = await played(db, settings, config, tmp_path / "parent")
        assert len({step.weights for step in whole.steps}) == 4, "every step moves the weights"
        await _refused(db, settings)
        await _two_at_once_make_one(db, settings)
        same = await fork(db, settings, "forked-same", AT)
        assert not list(layout.policies(settings.home, CampaignId("forked-same")).glob("*.tmp*"))
        found = await played(db, settings, same, tmp_path / "same")
        assert found.difference(whole) is None and found.weights == whole.weights
        assert [step.step for step in found.steps] == [AT - 1, AT, 3, 4]

        other = await fork(db, settings, "forked-other", AT, "trainer.optimizer.muon_lr=0.0001")
        assert other.trainer.optimizer.muon_lr == 0.0001
        apart = await played(db, settings, other, tmp_path / "other")
        difference = apart.difference(whole)
        assert difference is not None and difference.startswith("step 3, its weights")
        assert "other changes count for this step" in difference
        with pytest.raises(UsageError, match="is finished"):
            await discards.newest_to_discard(db, CampaignId("forked-other"))


async def _refused(db: Database, settings: Settings) -> None:
    """Nothing is left of a fork that cannot be made."""

    async def refused(told: str, at: int | None = AT, *values: str, name: str = "never") -> None:
        errors = (UsageError, ConfigError, CheckpointUnusable)
        with pytest.raises(errors, match=told):
            await fork(db, settings, name, at, *values)
        assert await campaigns.find(db, CampaignId("never")) is None
        assert not layout.policies(settings.home, CampaignId("never")).exists()

    await refused("has no checkpoint of version 9 .*\n.*nearest that it keeps is version 4", 9)
    await refused("cannot set seed", AT, "seed=5")
    await refused("cannot set policy.model", AT, "policy.model=/models/other")
    await refused("did you mean lr", AT, "trainer.optimizer.lrr=1")
    await refused("ends after step 4: a fork of version 4 has no step left", None)
    await refused(f"{PARENT} exists", AT, name=PARENT)
    [_, _, version, *_] = await policies.list_policies(db, PARENT)
    config = Path(version.path) / "config.json"
    before = config.read_bytes()
    config.write_bytes(before + b" ")
    try:
        await refused("config.json", AT)
    finally:
        config.write_bytes(before)


async def _two_at_once_make_one(db: Database, settings: Settings) -> None:
    """And one that was killed before its rows left files, which the next one replaces."""
    name = CampaignId("forked-twice")
    left = layout.policy(settings.home, name, 0)
    left.mkdir(parents=True)
    (left / "half").write_text("written")
    made: list[Any] = await asyncio.gather(
        *(campaign_fork.fork(db, settings.home, PARENT, AT, name, []) for _ in range(3)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, campaign_fork.ForkedCampaign) for each in made) == 1, made
    late = [each for each in made if isinstance(each, UsageError)]
    assert [each.message for each in late] == [f"campaign {name} exists"] * 2, made
    assert not (left / "half").exists()
    record = await campaigns.get(db, name)
    assert record.parent is not None and record.parent.version == AT
    stored = await policies.list_policies(db, name)
    assert [each.version for each in stored] == [0, AT - 1, AT]
    with pytest.raises(UsageError, match=f"begins with version {AT} of campaign {PARENT}"):
        await discards.newest_to_discard(db, name)
