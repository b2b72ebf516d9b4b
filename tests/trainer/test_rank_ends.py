"""A rank that the kernel ended for its memory is told so, whatever Ray tells of its end."""

from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayError

from mainspring.training.training_faults import RankOutOfMemory, TrainerLost
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
