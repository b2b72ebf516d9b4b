"""A batch file: the same bits on the other side, no other bytes, and none left behind."""

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from mainspring.status.fates import rule_of
from mainspring.training.training_faults import BatchFileDamaged
from mainspring.trajectories.samples import Sample, digest
from trainer.process.batch_file import BatchFile, batch_file

ENDED_IN_THE_BLOCK = """
import os, signal, sys
from pathlib import Path
from trainer.process.batch_file import batch_file
with batch_file(Path(sys.argv[1]), [], step=1, epoch=int(sys.argv[2])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_in_its_step(folder: Path, epoch: int = 1) -> None:
    command = [sys.executable, "-c", ENDED_IN_THE_BLOCK, str(folder), str(epoch)]
    assert subprocess.run(command, timeout=60).returncode == -9


def odd_ones(batch: list[Sample]) -> list[Sample]:
    """With values that only bits tell apart, lengths that align nothing, and a longer name."""
    odd = np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)
    first = batch[0]
    return [
        replace(
            first,
            logprobs=np.concatenate([odd, first.logprobs[4:]]),
            reward=0.1 + 0.2,
            turn_rewards=((3, 0.1), (7, -0.1 - 0.2)),
        ),
        *batch[1:],
        replace(first, rollout="c/g\N{GREEK SMALL LETTER BETA}/1", branch=7),
    ]


def test_samples_are_the_same_bit_for_bit_also_after_the_file_is_gone(
    batch: list[Sample], tmp_path: Path
) -> None:
    given = odd_ones(batch)
    with batch_file(tmp_path / "batches", given, step=3, epoch=2) as file:
        assert file.num_bytes == file.path.stat().st_size
        found = file.samples()
    assert list((tmp_path / "batches").iterdir()) == []
    assert digest(found) == digest(given)
    for mine, theirs in zip(found, given, strict=True):
        for field in fields(Sample):
            a, b = getattr(mine, field.name), getattr(theirs, field.name)
            if not isinstance(b, np.ndarray):
                assert a == b
                continue
            assert type(a) is np.ndarray and a.dtype == b.dtype and a.flags.aligned
            assert a.tobytes() == b.tobytes()


def test_a_batch_without_samples_is_one(tmp_path: Path) -> None:
    with batch_file(tmp_path, [], step=1, epoch=1) as file:
        assert file.samples() == []


def _truncate(file: BatchFile) -> None:
    content = file.path.read_bytes()
    file.path.write_bytes(content[:-1])


def _alter_header(file: BatchFile) -> None:
    content = bytearray(file.path.read_bytes())
    content[0] ^= 0xFF
    file.path.write_bytes(content)


def _alter_token(file: BatchFile) -> None:
    content = bytearray(file.path.read_bytes())
    content[len(content) // 2] ^= 1
    file.path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_truncate, r"has \d+ bytes, expected \d+"),
        (_alter_header, "holds other bytes than were written"),
        (_alter_token, "holds other bytes than were written"),
        (lambda file: file.path.unlink(), "cannot be read"),
    ],
)
def test_another_file_than_was_written_is_refused(
    damage, problem: str, batch: list[Sample], tmp_path: Path
) -> None:
    with batch_file(tmp_path, batch, step=1, epoch=1) as file:
        damage(file)
        with pytest.raises(BatchFileDamaged, match=problem) as caught:
            file.samples()
    assert str(file.path) in caught.value.message
    assert not rule_of(BatchFileDamaged.fault).is_final(attempt=1, waited_s=1e6)


def test_what_a_killed_trainer_left_ends_with_the_next_step(tmp_path: Path) -> None:
    for epoch in (3, 1):  # each step removes what is not newer
        killed_in_its_step(tmp_path, epoch)
    (tmp_path / "kept.txt").touch()
    assert len(list(tmp_path.iterdir())) == 3
    with batch_file(tmp_path, [], step=2, epoch=2):
        pass
    # an older trainer leaves alone what a newer one works with
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kept.txt",
        "step00001-epoch00003.batch",
    ]


def test_a_file_that_was_not_written_whole_is_removed(batch: list[Sample], tmp_path: Path) -> None:
    wrong = replace(batch[0], logprobs=batch[0].logprobs.astype(np.float64))
    with (
        pytest.raises(AssertionError, match="logprobs of r0: float64"),
        batch_file(tmp_path, [wrong], step=1, epoch=1),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
