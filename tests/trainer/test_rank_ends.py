"""A rank that the kernel ended for its memory is told so, whatever Ray tells of its end."""

from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayError

from mainspring.training.training_faults import RankOutOfMemory, TrainerLost
from mainspring.words.causes import shortened
from mainspring.words.waits import MAX_CHARS
from trainer.process import rank_ends
from trainer.process.rank_ends import RankEnds
from trainer.process.rank_log import rank_log


def end_of(error: RayError, *, kills: tuple[int | None, int | None], logs: Path) -> TrainerLost:
    before, after = kills
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_ends, "memory_kills", lambda: after)
        return RankEnds(raised={}, died={1: error}).told(logs, before)


@pytest.mark.parametrize("kills", [(0, 1), (3, 5)])
def test_a_rank_that_the_kernel_ended(kills: tuple[int, int], tmp_path: Path) -> None:
    rank_log(tmp_path, 1).parent.mkdir(parents=True, exist_ok=True)
    rank_log(tmp_path, 1).write_text("step 4: 12 micro-batches\n")
    end = end_of(ActorDiedError(), kills=kills, logs=tmp_path)
    assert isinstance(end, RankOutOfMemory)
    assert end.message.startswith("out of memory: the kernel ended rank 1 of the trainer")
    assert "step 4: 12 micro-batches" in end.message and str(rank_log(tmp_path, 1)) in end.message
    assert end.remedy and "micro_batch_tokens" in end.remedy


def test_a_rank_that_ray_ended_for_its_memory(tmp_path: Path) -> None:
    end = end_of(OutOfMemoryError("worker killed"), kills=(None, None), logs=tmp_path)
    assert isinstance(end, RankOutOfMemory)
    assert end.message.startswith("out of memory: rank 1 of the trainer")


@pytest.mark.parametrize("kills", [(0, 0), (None, None), (None, 4)])
def test_a_rank_that_died_otherwise(kills: tuple[int | None, int | None], tmp_path: Path) -> None:
    end = end_of(ActorDiedError(), kills=kills, logs=tmp_path)
    assert type(end) is TrainerLost and "memory" not in end.message


WARNED = """step 4: loading
/site-packages/megatron/core/transformer_config.py:1705: UserWarning: full scope is deprecated. Use
  warnings.warn(
/site-packages/torch/x.py:7: FutureWarning: soon
  warnings.warn(
"""
RAYS_WORDS = (
    "The actor died unexpectedly before finishing this task. class_name: RankActor. The actor is "
    "dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
    "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes "
    "include: (1) the process was killed by the OOM killer due to high memory usage, (2) ..."
)


@pytest.mark.parametrize(("kills", "counted"), [((0, 0), True), ((None, None), False)])
def test_a_rank_that_was_killed_is_told_so_with_its_log(
    kills: tuple[int | None, int | None], counted: bool, tmp_path: Path
) -> None:
    log = rank_log(tmp_path, 1)
    log.write_text(WARNED)
    end = end_of(RayError(RAYS_WORDS), kills=kills, logs=tmp_path)
    said = "rank 1 of the trainer was killed (SIGKILL) or crashed: it ended without an error"
    assert end.message.startswith(said)
    assert ("counts no lack of memory" in end.message) is counted
    assert end.message.endswith(f"its log: {log}, which ends with: step 4: loading")
    shown = shortened(end.message, MAX_CHARS)
    assert str(log) in shown and "SIGKILL" in shown and "warn" not in shown
    log.write_text("Fatal Python error: Segmentation fault\n")
    end = end_of(RayError(RAYS_WORDS), kills=kills, logs=tmp_path)
    assert end.message.endswith("ends with: Fatal Python error: Segmentation fault")
    log.write_text("".join(WARNED.splitlines(keepends=True)[1:]))
    end = end_of(RayError(RAYS_WORDS), kills=kills, logs=tmp_path)
    assert end.message.endswith(f"its log: {log}")
