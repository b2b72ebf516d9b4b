"""A checkpoint that ranks write while they train on: it is as of the step it belongs to, and a
trainer killed before, in and after it has the curve of an undisturbed one, digit for digit."""

import time
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import policies
from infra.policy.model.weight_files import weights_digest
from mainspring.artifacts import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId
from mainspring.training.step_metrics import Origin
from tests.trainer import rank_jobs
from tests.trainer.conftest import MakeModel
from tests.trainer.deadly_background import POINTS, WRITERS
from tests.trainer.ranks import run
from tests.trainer.test_step_killed import NUM_STEPS, TIMEOUT_S, curve, stored, train
from trainer.engines import checkpoint
from trainer.engines.checkpoint import Sharding
from trainer.model.hf_directory import load_weights

ENGINE = {
    "engine": "tests.trainer.deadly_background:DeadlyMcore",
    "checkpoint_in_background": True,
}


@pytest.mark.parametrize("layout", [{}, {"tensor_parallel": 2, "data_parallel": 2}])
def test_it_is_as_of_its_step_whatever_follows(layout, make_model, make_config, batch, tmp_path):
    _, directory = make_model("qwen3")
    config = make_config(engine="mcore", **layout)
    size = config.trainer.world_size
    [expected, *_] = run(size, rank_jobs.written_in_background, config, directory, batch, tmp_path)
    [found, *_] = run(size, rank_jobs.step_after_loading, config, directory, batch, tmp_path)
    assert found.loss == expected.loss and found.grad_norm == expected.grad_norm
    copies = config.trainer.data_parallel
    one, other = load_weights(tmp_path / "third"), load_weights(tmp_path / f"again1{copies}")
    assert all((one[name] == other[name]).all() for name in one)


def test_the_plain_engine_is_refused() -> None:
    trainer = {"device": "cpu", "checkpoint_in_background": True}
    with pytest.raises(ValidationError, match="writes no checkpoint in the background"):
        CampaignConfig.model_validate({"name": "plain", "trainer": trainer})


async def compared(
    db: Database, url: str, tmp_path: Path, model: Path, points: tuple[str, ...]
) -> None:
    calm = await stored(db, "calm", model, **ENGINE)
    homes = {calm: tmp_path / "calm"}
    train(url, homes[calm], calm, {})
    assert await resumable(db, calm) == [0, 2, NUM_STEPS]
    for number, point in enumerate(points):
        killed = await stored(db, f"killed{number}", model, **ENGINE)
        home = homes[killed] = tmp_path / killed
        train(url, home, killed, {step: [point] for step in ("2", "3", "4")})
        assert (home / "armed" / f"hit {point}").exists(), point
        assert await curve(db, killed) == await curve(db, calm), point
        assert weights_of(home, killed) == weights_of(homes[calm], calm), point
    for campaign, home in homes.items():
        folder = layout.policy(home, campaign, 0).parent
        assert not list(folder.glob(f"*{checkpoint.TEMPORARY}*"))
        record = await campaigns.get(db, campaign)
        origin = Origin(campaign=campaign, uid=record.uid, config_digest=record.config_digest)
        for version in await resumable(db, campaign):
            directory = layout.policy(home, campaign, version)
            if directory.exists():  # others were removed as too old
                manifest = checkpoint.read(directory, origin)
                assert manifest.sharding is Sharding.RESHARDABLE
                checkpoint.verify(directory, manifest)
        assert living(home / "armed" / WRITERS) == []


async def resumable(db: Database, campaign: CampaignId) -> list[int]:
    found = await policies.list_policies(db, campaign)
    return [each.version for each in found if each.checkpoint is not None]


def weights_of(home: Path, campaign: CampaignId) -> str | None:
    return weights_digest(layout.policy(home, campaign, NUM_STEPS) / "hf")


def living(writers: Path) -> list[psutil.Process]:
    """What is left of the processes that ranks had started."""
    found: list[psutil.Process] = []
    for line in writers.read_text().splitlines() if writers.exists() else []:
        pid, created = line.split()
        try:
            process = psutil.Process(int(pid))
        except psutil.NoSuchProcess:
            continue
        if process.create_time() == float(created):
            found.append(process)
    psutil.wait_procs(found, timeout=5.0)
    return [each for each in found if each.is_running()]


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT_S)
async def test_a_rank_killed_while_its_checkpoint_is_written(
    db: Database, store_url: str, tmp_path: Path, make_model: MakeModel
) -> None:
    await compared(db, store_url, tmp_path, make_model()[1], ("rank while it is written",))


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("points", [POINTS[:4], POINTS[4:]], ids=["until", "while"])
async def test_a_trainer_killed_at_each_point_of_a_checkpoint_in_the_background(
    points, db: Database, store_url: str, tmp_path: Path, make_model: MakeModel
) -> None:
    began = time.monotonic()
    await compared(db, store_url, tmp_path, make_model()[1], points)
    print(f"{len(points)} kills in {time.monotonic() - began:.0f} s")
