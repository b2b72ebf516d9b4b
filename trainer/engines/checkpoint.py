"""A checkpoint directory: one file per tensor-parallel rank, a Hugging Face export, a manifest.

    <directory>/tp0.pt ..       model and optimizer of each tensor-parallel rank, or
    <directory>/critic-tp0.pt   the critic's, where the campaign has one
    <directory>/shards/         the same by Megatron or by torch, in pieces for any layout of ranks
                                (the critic's in critic/), or
                                neither: weights alone, of a version between two checkpoints
    <directory>/hf/             what policy engines load
    <directory>/checkpoint.json written last: whose it is, and every other file with its digest

Invariants: a directory under its own name is complete. It is written under a temporary name beside
it, which carries the trainer's epoch, flushed, and renamed; what a killed process leaves behind is
never loaded. A directory of another campaign, or with a missing or altered file, is refused by
name. A trainer that was replaced can spoil nothing: what it wrote is renamed before it is removed,
and it renames nothing into place that lacks a file. Shards that were written in the background are
moved into a directory that is complete without them, and count with its next manifest. Imports no
torch.
"""

import contextlib
import hashlib
import os
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from mainspring.artifacts.file_digest import altered, sha256_of
from mainspring.artifacts.layout import HF_DIRECTORY, MANIFEST
from mainspring.training.step_metrics import Origin
from mainspring.training.training_faults import CheckpointUnusable, TrainerFenced

SHARDS = "shards"
CRITIC = "critic"
_SHARD_FILES = ("metadata.json", "common.pt")
"""That Megatron writes beside its pieces."""
_TORCH_FILES = (".metadata",)
"""That torch writes beside its pieces, last."""
TEMPORARY = ".tmp-"
FORMAT = 2
_HASHERS = 4
"""Files digested at once: a disk gives more to several readers."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sharding(StrEnum):
    RANKS = "ranks"
    """A file for each tensor-parallel rank, for as many of them (the plain engine)."""
    RESHARDABLE = "reshardable"
    """Pieces that do not depend on the parallel sizes (the mcore engine)."""
    TORCH = "torch"
    """Pieces by torch.distributed.checkpoint, for any number of ranks (the fsdp engine)."""
    NONE = "none"
    """Nothing but the export, which engines load: training does not resume from it."""


class Identity(_Model):
    """Identity of weights: the same identity is the same step of the same campaign."""

    origin: Origin
    version: int
    """Policy version of the weights."""
    parent: str | None = None
    """Digest of the identity they were trained from; None for version 0. Not of its files: a
    version that is trained again after a crash has written none."""
    batch: str | None = None
    """Digest of what they were trained on since then."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class StoredFile(_Model):
    path: str
    """Relative to the checkpoint."""
    size: int
    sha256: str


class Manifest(_Model):
    format: int = FORMAT
    identity: Identity
    epoch: int
    """Epoch of the trainer that wrote it."""
    tensor_parallel: int
    sharding: Sharding = Sharding.RANKS
    files: tuple[StoredFile, ...] = ()

    @property
    def has_critic(self) -> bool:
        critic_files = {
            str(critic_file(Path(), 0)),
            *(f"{CRITIC}/{name}" for name in (_SHARD_FILES[0], *_TORCH_FILES)),
        }
        return any(file.path in critic_files for file in self.files)


def rank_file(directory: Path, tp_rank: int) -> Path:
    return directory / f"tp{tp_rank}.pt"


def critic_file(directory: Path, tp_rank: int) -> Path:
    return directory / f"critic-tp{tp_rank}.pt"


def read(directory: Path, origin: Origin) -> Manifest:
    """The manifest of a checkpoint of `origin`. Raises CheckpointUnusable."""
    if TEMPORARY in directory.name:
        raise unusable(origin, directory, "was left half-written by a killed trainer")
    if not directory.is_dir():
        raise unusable(origin, directory, "does not exist")
    try:
        text = (directory / MANIFEST).read_text()
        if f'"format": {FORMAT}' not in text and '"format":' in text:
            raise unusable(origin, directory, "was written by another version of Mainspring")
        manifest = Manifest.model_validate_json(text)
    except (OSError, ValidationError) as error:
        reason = getattr(error, "strerror", None) or "it is not a manifest"
        raise unusable(origin, directory, f"cannot be read: {MANIFEST}: {reason}") from None
    if manifest.identity.origin != origin:
        raise unusable(
            origin,
            directory,
            f"belongs to {manifest.identity.origin}, expected {origin}",
            remedy="restore the campaign's own from a backup, or resume from an older version with "
            f"`mainspring campaign rollback {origin.campaign}`; before its first version, move the "
            "directory away",
        )
    return manifest


def verify(directory: Path, manifest: Manifest) -> None:
    """Raises CheckpointUnusable naming the first file that is missing or not as it was written."""
    origin = manifest.identity.origin
    for file in manifest.files:
        path = directory / file.path
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise unusable(origin, directory, f"lacks its file {file.path}")
        if size != file.size:
            raise unusable(
                origin, directory, f"has {size} bytes of its file {file.path}, expected {file.size}"
            )
    with ThreadPoolExecutor(_HASHERS) as pool:
        digests = pool.map(sha256_of, [directory / file.path for file in manifest.files])
        for file, digest in zip(manifest.files, digests, strict=True):
            if digest != file.sha256:
                raise unusable(origin, directory, altered(file.path, digest, file.sha256))


def begin(directory: Path, epoch: int) -> Path:
    """A fresh temporary directory for `directory`; removes those of killed attempts, and of older
    trainers also for other versions. Raises TrainerFenced when a newer trainer is writing one."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    for left in directory.parent.glob(f"*{TEMPORARY}e*"):
        if _epoch_of(left) < epoch:
            discard(left)
    for left in directory.parent.glob(f"{directory.name}{TEMPORARY}*"):
        if _epoch_of(left) > epoch:
            raise TrainerFenced(
                f"checkpoint {directory}: a trainer of epoch {_epoch_of(left)} is writing it, this "
                f"one has epoch {epoch}"
            )
        discard(left)
    temporary = directory.with_name(f"{directory.name}{TEMPORARY}e{epoch:05d}-{os.getpid()}")
    temporary.mkdir()
    return temporary


def commit(
    temporary: Path, directory: Path, manifest: Manifest, *, has_critic: bool = False
) -> Manifest:
    """Make the finished `temporary` visible as `directory`, in one rename, on disk; the manifest
    with its files. `has_critic`: whether the ranks wrote one. Raises TrainerFenced when another
    trainer took files away, and FileExistsError when `directory` exists."""
    match manifest.sharding:
        case Sharding.RANKS:
            files_of = [rank_file, critic_file] if has_critic else [rank_file]
            ranks = range(manifest.tensor_parallel)
            needed = [file_of(temporary, rank) for file_of in files_of for rank in ranks]
        case Sharding.RESHARDABLE | Sharding.TORCH:
            folders = [SHARDS, CRITIC] if has_critic else [SHARDS]
            names = _names_in(manifest.sharding)
            needed = [temporary / folder / name for folder in folders for name in names]
        case Sharding.NONE:
            needed = []
    needed.append(temporary / HF_DIRECTORY / "config.json")
    paths = sorted(path for path in temporary.rglob("*") if path.is_file())
    if missing := [path for path in needed if path not in paths]:
        raise TrainerFenced(
            f"checkpoint {directory}: {missing[0].relative_to(temporary)} was removed while it was "
            "written, by another trainer"
        )
    try:
        whole = manifest.model_copy(update={"files": _stored(temporary, paths)})
        (temporary / MANIFEST).write_text(whole.model_dump_json(indent=2) + "\n")
        for path in [*temporary.rglob("*"), temporary]:
            _flush(path)
        if directory.exists():  # rename would replace an empty one
            raise FileExistsError(f"{directory} exists")
        temporary.rename(directory)
    except FileNotFoundError as error:
        raise TrainerFenced(
            f"checkpoint {directory}: {error.filename} was removed while it was written, by "
            "another trainer"
        ) from error
    except OSError as error:
        if directory.exists():
            raise FileExistsError(f"{directory} exists") from error
        raise
    _flush(directory.parent)
    return whole


def copy_as(source: Path, origin: Origin, directory: Path, identity: Identity) -> None:
    """Make the files of a checkpoint of `origin` one of another campaign's, complete under its name
    or not at all. They are the same files on disk where that is possible: nothing writes into them.
    Raises CheckpointUnusable for a file that is missing or altered."""
    manifest = read(source, origin)
    verify(source, manifest)
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = directory.with_name(f"{directory.name}{TEMPORARY}copy-{uuid.uuid4().hex[:8]}")
    try:
        for file in manifest.files:
            path = temporary / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source / file.path, path)
            except OSError:  # another file system
                shutil.copy2(source / file.path, path)
        own = manifest.model_copy(update={"identity": identity, "epoch": 0})
        (temporary / MANIFEST).write_text(own.model_dump_json(indent=2) + "\n")
        for path in [*temporary.rglob("*"), temporary]:
            _flush(path)
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _flush(directory.parent)


def add_shards(temporary: Path, directory: Path, manifest: Manifest) -> Manifest:
    """Make the shards in the finished `temporary` those of the version at `directory`, whose
    manifest has none yet: they count once its new manifest is in its place. Raises TrainerFenced
    when another trainer took files away."""
    try:
        stored = read(directory, manifest.identity.origin)
        if (stored.identity, stored.epoch) != (manifest.identity, manifest.epoch):
            raise TrainerFenced(f"checkpoint {directory}: another trainer has written it since")
        discard(directory / SHARDS)
        (temporary / SHARDS).rename(directory / SHARDS)
        shards = _stored(directory, sorted((directory / SHARDS).rglob("*")))
        if missing := [
            name
            for name in _names_in(manifest.sharding)
            if f"{SHARDS}/{name}" not in {file.path for file in shards}
        ]:
            raise TrainerFenced(f"checkpoint {directory}: {missing[0]} was removed by another one")
        whole = manifest.model_copy(update={"files": (*stored.files, *shards)})
        beside = directory / f"{MANIFEST}{TEMPORARY}e{manifest.epoch:05d}"
        beside.write_text(whole.model_dump_json(indent=2) + "\n")
        for path in [*(directory / SHARDS).rglob("*"), directory / SHARDS, beside]:
            _flush(path)
        beside.rename(directory / MANIFEST)
        _flush(directory)
    except FileNotFoundError as error:
        raise TrainerFenced(
            f"checkpoint {directory}: {error.filename} was removed while it was written, by "
            "another trainer"
        ) from error
    shutil.rmtree(temporary, ignore_errors=True)
    return whole


def _names_in(sharding: Sharding) -> tuple[str, ...]:
    """Files that a folder of pieces has, whatever the number of ranks."""
    return _TORCH_FILES if sharding is Sharding.TORCH else _SHARD_FILES


def _stored(directory: Path, paths: list[Path]) -> tuple[StoredFile, ...]:
    files = [path for path in paths if path.is_file()]
    with ThreadPoolExecutor(_HASHERS) as pool:
        digests = list(pool.map(sha256_of, files))
    return tuple(
        StoredFile(path=str(path.relative_to(directory)), size=path.stat().st_size, sha256=digest)
        for path, digest in zip(files, digests, strict=True)
    )


def discard(directory: Path) -> None:
    """Remove a directory that another process may still be writing or renaming into place: it is
    renamed first, so that the other one fails instead of keeping half of it."""
    name = directory.name.split(TEMPORARY)[0]
    away = directory.with_name(f"{name}{TEMPORARY}gone-{uuid.uuid4().hex[:8]}")
    with contextlib.suppress(FileNotFoundError):
        directory.rename(away)
        shutil.rmtree(away, ignore_errors=True)


def unusable(origin: Origin, directory: Path, why: str, remedy: str = "") -> CheckpointUnusable:
    return CheckpointUnusable(
        f"campaign {origin.campaign}: checkpoint {directory} {why}",
        remedy=remedy
        or "restore it from a backup, or resume from an older version with "
        f"`mainspring campaign rollback {origin.campaign}`",
    )


def _epoch_of(temporary: Path) -> int:
    epoch = temporary.name.partition(f"{TEMPORARY}e")[2].partition("-")[0]
    return int(epoch) if epoch.isdigit() else 0


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
