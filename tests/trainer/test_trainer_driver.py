"""The driver on a local Ray: two tensor-parallel ranks, then two data-parallel ones.

Starting ranks costs seconds, so each layout is started once and its tests build on one another.
"""

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
import torch

from infra.temporal.faults import failure
from mainspring.artifacts.batch_invariance import MKL_VARIABLE, environment
from mainspring.config.campaign import CampaignConfig
from mainspring.status import FaultKind
from mainspring.training.step_metrics import Origin
from mainspring.training.training_faults import (
    BatchFileDamaged,
    CheckpointUnusable,
    DeviceMissing,
    LogprobGapTooLarge,
    TrainerFenced,
    TrainerLost,
)
from mainspring.trajectories.samples import Sample
from tests.processes import runs
from tests.trainer.failing_engine import FAILS_AT
from tests.waiting import until
from trainer.engines import checkpoint
from trainer.engines.checkpoint import HF_DIRECTORY, Identity
from trainer.model.hf_directory import load_weights
from trainer.process import rank_processes, ray_cluster
from trainer.process.batch_file import batch_file
from trainer.process.driver import TrainerDriver
from trainer.process.rank import TrainerRank
from trainer.process.rank_processes import rank_environment

ORIGIN = Origin(campaign="t", uid="uid-of-old", config_digest="0123456789abcdef")


def identity(version: int, origin: Origin = ORIGIN, batch: str = "b") -> Identity:
    return Identity(origin=origin, version=version, parent="p", batch=batch)


def test_ranks_of_a_reproducible_campaign_ask_for_one_kernel(make_config) -> None:
    usual = make_config(threads_per_rank=2)
    fields = usual.model_dump(exclude_unset=True) | {"schedule": "reproducible"}
    asked = rank_environment(CampaignConfig.model_validate(fields))
    assert asked[MKL_VARIABLE] == environment()[MKL_VARIABLE]
    assert asked["OMP_NUM_THREADS"] == "2"
    assert MKL_VARIABLE not in rank_environment(usual)


@pytest.mark.parametrize("layout", ["tensor_parallel", "data_parallel"])
async def test_two_ranks_train_like_hugging_face(
    layout, driver: TrainerDriver, make_model, make_config, batch, oracle_step, tmp_path
):
    model, source = make_model("qwen3", tied=layout == "tensor_parallel")
    config = make_config(**{layout: 2}, micro_batch_tokens=64)
    # in a thread that ends with the call, as an activity's may
    with ThreadPoolExecutor(max_workers=1) as executor:
        executor.submit(driver.start, config, source).result()

    # served log-probs are the trainer's own: any layout recomputes them
    served = [
        replace(sample, logprobs=found)
        for sample, found in zip(batch, driver.logprobs(batch), strict=True)
    ]
    gap = driver.logprob_gap(served, version=0)
    assert max(gap.max, gap.mean, gap.p999, gap.k3) < 1e-6
    assert gap.num_tokens == sum(int((s.versions == 0).sum()) for s in served)

    adamw = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(3):
        expected = oracle_step(model, batch, adamw)
        metrics = driver.train_step(batch, step=step, current_version=0)
        assert metrics.loss == pytest.approx(expected, abs=1e-5)
        assert metrics.num_samples == 7
    driver.save(tmp_path / "v3", identity(3), epoch=1)
    trained = load_weights(tmp_path / "v3" / HF_DIRECTORY)
    reference = dict(model.named_parameters())
    gaps = {n: float((w - reference[n]).abs().max()) for n, w in trained.items()}
    # q and k norms are replicated, but each rank's heads give only part of their gradient
    assert max(gap for name, gap in gaps.items() if "_norm" in name) < 1e-4
    assert max(gaps.values()) < 1e-4


async def test_too_few_gpus_are_an_error_and_never_the_cpu(make_model, make_config):
    """On a host without GPUs; on one with GPUs the ranks need more than it has."""
    driver = TrainerDriver()
    ranks = torch.cuda.device_count() + 1
    config = make_config(device="cuda", data_parallel=ranks)
    with ThreadPoolExecutor(max_workers=1) as executor:
        starting = executor.submit(driver.start, config, make_model()[1])
        with pytest.raises(
            DeviceMissing, match=rf"campaign t: its {ranks} ranks .* sees {ranks - 1}"
        ):
            starting.result()
        driver.shutdown()


async def test_saving_twice_keeps_what_is_there(driver, batch, tmp_path):
    target = tmp_path / "v4"
    saved = driver.save(target, identity(4), epoch=1)
    before = (target / HF_DIRECTORY / "model.safetensors").read_bytes()
    after_four = driver.logprobs(batch)
    driver.train_step(batch, step=3, current_version=0)
    # as an attempt that crashed after saving would, here or in the next trainer
    assert driver.save(target, identity(4), epoch=2) == saved
    assert (target / HF_DIRECTORY / "model.safetensors").read_bytes() == before
    for a, b in zip(driver.logprobs(batch), after_four, strict=True):
        assert (a == b).all()
    with pytest.raises(CheckpointUnusable, match="version 4, expected 5"):
        driver.save(target, identity(5), epoch=2)
    assert driver.load(target, ORIGIN, 4) == saved


async def test_a_checkpoint_of_another_campaign_is_refused_and_not_loaded(driver, batch, tmp_path):
    """As when Postgres was made anew, and the home and the campaign's name are the old ones."""
    target = tmp_path / "v5"
    theirs = driver.save(target, identity(5), epoch=1)
    driver.train_step(batch, step=4, current_version=0)
    mine = driver.logprobs(batch)
    again = ORIGIN.model_copy(update={"uid": "uid-of-today"})
    for attempt in (
        lambda: driver.save(target, identity(5, origin=again), epoch=1),
        lambda: driver.load(target, again, 5),
    ):
        with pytest.raises(
            CheckpointUnusable, match=r"belongs to .*uid-of-old.*, expected .*uid-of-today"
        ):
            attempt()
        for a, b in zip(driver.logprobs(batch), mine, strict=True):
            assert (a == b).all()
    assert checkpoint.read(target, ORIGIN) == theirs


async def test_what_another_batch_made_is_replaced_before_its_step_is_visible(
    driver, batch, tmp_path
):
    target = tmp_path / "v6"
    driver.save(target, identity(6, batch="dropped"), epoch=1)
    driver.train_step(batch, step=5, current_version=0)
    mine = driver.logprobs(batch)
    saved = driver.save(target, identity(6, batch="planned again"), epoch=1)
    for a, b in zip(driver.logprobs(batch), mine, strict=True):
        assert (a == b).all()
    assert checkpoint.read(target, ORIGIN) == saved
    (target / "tp0.pt").unlink()  # damaged, by the same step
    assert driver.save(target, identity(6, batch="planned again"), epoch=1) == saved
    checkpoint.verify(target, saved)
    driver.save(target, identity(6, batch="a newer trainer's"), epoch=3)
    with pytest.raises(TrainerFenced, match="newer trainer, of epoch 3"):
        driver.save(target, identity(6, batch="late"), epoch=2)


async def test_a_failed_step_leaves_the_ranks_usable(driver, make_model, make_config, batch):
    broken = [replace(sample, logprobs=sample.logprobs - 200) for sample in batch]
    with pytest.raises(LogprobGapTooLarge):
        driver.train_step(broken, step=4, current_version=0)
    assert driver.train_step(batch, step=4, current_version=0).grad_norm > 0


async def test_an_altered_batch_file_is_refused_and_the_ranks_stay_usable(
    driver: TrainerDriver, batch: list[Sample], tmp_path: Path
) -> None:
    with batch_file(tmp_path, batch, step=5, epoch=1) as file:
        content = bytearray(file.path.read_bytes())
        content[-1] ^= 1
        file.path.write_bytes(content)
        with pytest.raises(BatchFileDamaged, match="holds other bytes than were written"):
            driver.train_step(file, step=4, current_version=0)
    with batch_file(tmp_path, batch, step=5, epoch=1) as file:
        assert driver.train_step(file, step=4, current_version=0).num_samples == 7


async def test_a_rank_that_does_not_answer_is_ended(
    driver,
    make_model,
    make_config,
    batch,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
):
    def compute(_: object) -> None:
        begun.touch()
        while not enough.exists():
            sum(range(100_000))

    begun, enough = tmp_path / "begun", tmp_path / "enough"
    pids = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in driver._actors])
    # One that computes answers all the same.
    busy = driver._actors[0].__ray_call__.remote(compute)
    await until(begun.exists)
    ray.get(driver._actors[0].pulse.remote())
    assert not ray.wait([busy], timeout=0)[0]
    enough.touch()
    ray.get(busy)
    os.kill(pids[1], signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(rank_processes, "SILENCE_S", 4.0)
        # On a busy machine rank 0 may be late, too.
        with pytest.raises(TrainerLost, match=r"rank (0, )?1 of the trainer has not answered"):
            driver.train_step(batch, step=1, current_version=0)
    psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=30)
    assert not any(runs(pid) for pid in pids)
    logs = tmp_path_factory.mktemp("logs")  # the tests after this one use these ranks
    driver.start(make_config(data_parallel=2), make_model()[1], logs)


async def test_a_rank_without_a_micro_batch_does_not_hold_up_the_others(
    driver: TrainerDriver, make_model, make_config, batch
) -> None:
    """The two were started just now, in place of ranks that did not answer."""
    found = driver.train_step([batch[0]], step=0, current_version=0)
    single = TrainerRank(make_config(), make_model()[1])
    alone = single.train_step([batch[0]], step=0, current_version=0)
    assert found.values == alone.values and "clip_fraction" in found.values
    assert found.loss == pytest.approx(alone.loss, abs=1e-6)
    flat = driver.train_step(
        [replace(batch[0], advantages=np.zeros_like(batch[0].advantages))],
        step=1,
        current_version=0,
    )
    assert (flat.loss, flat.kl, flat.values) == (None, None, {})
    assert driver.train_step(batch, step=2, current_version=0).grad_norm > 0


async def test_a_killed_rank_is_an_error_that_shows_its_log(driver, batch):
    shout = lambda _: os.write(2, b"NCCL WARN the last words of a rank\n")  # noqa: E731
    ray.get(driver._actors[1].__ray_call__.remote(shout))
    pids = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in driver._actors])
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(
        TrainerLost,
        match=r"rank 1 of the trainer was killed.*rank1\.log, which ends with: .*the last words of",
    ):
        driver.train_step(batch, step=5, current_version=0)
    with pytest.raises(TrainerLost, match="no ranks"):
        driver.logprobs(batch)


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        ("1:value", FaultKind.UNEXPECTED, "rank 1 of the trainer failed: ValueError: Invalid beta"),
        ("0:memory", FaultKind.OUT_OF_MEMORY, "out of memory: rank 0 of the trainer failed: Run"),
        ("1:python memory", FaultKind.OUT_OF_MEMORY, "out of memory: rank 1 of the trainer failed"),
    ],
)
async def test_the_cause_of_a_failed_rank_comes_first(
    asked, kind, said, driver, make_model, make_config, batch, tmp_path
) -> None:
    """The other rank waits in its collective meanwhile, or is heard first."""
    _, source = make_model()
    config = make_config(data_parallel=2, engine="tests.trainer.failing_engine:FailingEngine")
    driver.start(config, source, tmp_path)
    (source / FAILS_AT).write_text(asked)
    with pytest.raises(TrainerLost) as failed:
        driver.train_step(batch, step=0, current_version=0)
    assert failed.value.fault is kind and failed.value.message.startswith(said)
    told = failure(failed.value, attempt=1, waited_s=0.0).message
    log = tmp_path / f"rank{asked[0]}.log"
    assert len(told) < 1500 and "\x1b" not in told and "ray::" not in told and "File" not in told
    assert str(log) in told and "Traceback" in log.read_text()
    with pytest.raises(TrainerLost, match="no ranks"):
        driver.logprobs(batch)


async def test_a_trainer_that_ray_ended_is_named_by_the_next() -> None:
    program = """if True:
        import ray, trainer.process.ray_cluster as ours
        cluster = ours.RayCluster(ours.LOCAL)
        cluster.connect("ended")
        dict(cluster._servers)["raylet"].kill()
        while True: ray.put(b"")"""
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await ended.wait() == 1
    assert "plasma store" in ray_cluster.end_leftovers()[ended.pid]
    assert not list(Path(ray_cluster.SOCKET_ROOT).glob(f"ms-ray-{ended.pid}-*"))
