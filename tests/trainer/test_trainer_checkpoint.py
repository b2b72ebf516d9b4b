"""Checkpoint directories: whole or refused by name, also between two trainers that both live."""

from pathlib import Path

import pytest

from mainspring.training.step_metrics import Origin
from mainspring.training.training_faults import CheckpointUnusable, TrainerFenced
from trainer.engines import checkpoint
from trainer.engines.checkpoint import Identity, Manifest

ORIGIN = Origin(campaign="t", uid="u1", config_digest="0123456789abcdef")
MANIFEST = Manifest(identity=Identity(origin=ORIGIN, version=3), epoch=1, tensor_parallel=1)


def write(temporary: Path, weights: bytes = b"weights") -> None:
    """What the ranks write."""
    (temporary / "tp0.pt").write_bytes(weights)
    write_export(temporary)


def write_export(temporary: Path) -> None:
    (temporary / "hf").mkdir()
    (temporary / "hf" / "config.json").write_text("{}")
    (temporary / "hf" / "model.safetensors").write_bytes(b"exported")


def saved(directory: Path) -> Manifest:
    temporary = checkpoint.begin(directory, 1)
    write(temporary)
    return checkpoint.commit(temporary, directory, MANIFEST)


def test_a_half_written_checkpoint_is_never_loaded(tmp_path: Path) -> None:
    target = tmp_path / "v3"
    temporary = checkpoint.begin(target, 1)
    (temporary / "tp0.pt").write_bytes(b"half")
    assert not target.exists()
    with pytest.raises(CheckpointUnusable, match="half-written"):
        checkpoint.read(temporary, ORIGIN)
    with pytest.raises(CheckpointUnusable, match=r"v3 does not exist\n.*campaign rollback t`"):
        checkpoint.read(target, ORIGIN)
    manifest = saved(target)  # by the next trainer: nothing of the first one is left
    assert [path.name for path in tmp_path.iterdir()] == ["v3"]
    assert checkpoint.read(target, ORIGIN) == manifest
    assert [file.path for file in manifest.files] == [
        "hf/config.json",
        "hf/model.safetensors",
        "tp0.pt",
    ]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / "tp0.pt").unlink(), "lacks its file tp0.pt"),
        (
            lambda d: (d / "tp0.pt").write_bytes(b"weig"),
            "has 4 bytes of its file tp0.pt, expected 7",
        ),
        (lambda d: (d / "hf/config.json").write_text("[]"), "has an altered file hf/config.json"),
        (lambda d: (d / "checkpoint.json").unlink(), "cannot be read: checkpoint.json: No such"),
        (lambda d: (d / "checkpoint.json").write_text("{"), "cannot be read: .* not a manifest"),
        (
            lambda d: (d / "checkpoint.json").write_text('{"format": 1, "version": 3}'),
            "another version of Mainspring",
        ),
    ],
)
def test_what_is_missing_or_cut_is_named(tmp_path: Path, damage, says: str) -> None:
    target = tmp_path / "v3"
    saved(target)
    damage(target)
    with pytest.raises(CheckpointUnusable, match=says) as raised:
        checkpoint.verify(target, checkpoint.read(target, ORIGIN))
    assert str(target) in str(raised.value)
    assert "mainspring campaign rollback t" in str(raised.value)


def test_another_campaign_of_the_name_is_refused_with_both_identities(tmp_path: Path) -> None:
    saved(tmp_path / "v3")
    for other in ({"uid": "u2"}, {"config_digest": "fedcba9876543210"}):
        with pytest.raises(CheckpointUnusable) as raised:
            checkpoint.read(tmp_path / "v3", ORIGIN.model_copy(update=other))
        assert "uid u1, configuration 0123456789ab" in str(raised.value)
        assert next(iter(other.values()))[:12] in str(raised.value)


def test_two_live_trainers_spoil_nothing(tmp_path: Path) -> None:
    """The first one has written its ranks' files when the second one takes over; then the first
    one writes its export and puts what is left under the final name."""
    target = tmp_path / "v3"
    first = checkpoint.begin(target, 1)
    (first / "tp0.pt").write_bytes(b"weights of the first")
    second = checkpoint.begin(target, 2)
    with pytest.raises(FileNotFoundError):
        write_export(first)
    with pytest.raises(TrainerFenced, match=r"tp0.pt was removed"):
        checkpoint.commit(first, target, MANIFEST)
    first.mkdir()  # a writer that makes its folders anew
    write_export(first)
    with pytest.raises(TrainerFenced, match=r"tp0.pt was removed"):
        checkpoint.commit(first, target, MANIFEST)
    assert not target.exists()
    write(second)
    manifest = checkpoint.commit(second, target, MANIFEST.model_copy(update={"epoch": 2}))
    checkpoint.verify(target, manifest)
    assert manifest.epoch == 2


def test_the_first_of_two_checkpoints_stands(tmp_path: Path) -> None:
    target = tmp_path / "v3"
    late = checkpoint.begin(target, 1)
    write(late)
    early = tmp_path / "v3.tmp-e00001-77"
    early.mkdir()
    write(early, b"the same step")
    manifest = checkpoint.commit(early, target, MANIFEST)
    with pytest.raises(FileExistsError):
        checkpoint.commit(late, target, MANIFEST)
    checkpoint.verify(target, manifest)


def test_an_older_trainer_does_not_touch_a_newer_ones_files(tmp_path: Path) -> None:
    target = tmp_path / "v3"
    newer = checkpoint.begin(target, 5)
    write(newer)
    with pytest.raises(TrainerFenced, match="epoch 5 is writing it"):
        checkpoint.begin(target, 4)
    checkpoint.verify(target, checkpoint.commit(newer, target, MANIFEST))
