"""A checkpoint that ranks write while they train on: one at a time.

Invariants: it is begun for a version whose weights are in place, and is as of then; it counts once
all ranks have written it and the version's manifest names its files; what a lost rank leaves is
removed. Used by `trainer.process.driver`, which makes the calls of the ranks.
"""

from pathlib import Path

from trainer.engines import checkpoint
from trainer.engines.checkpoint import Manifest, Sharding
from trainer.process.rank_calls import AllRanks, RankCalls


class BackgroundCheckpoint:
    def __init__(self, all_ranks: AllRanks) -> None:
        self._all = all_ranks
        self._temporary: Path | None = None
        self._directory = Path()
        self._manifest: Manifest | None = None

    @property
    def version(self) -> int | None:
        """The version whose checkpoint is being written."""
        return None if self._manifest is None else self._manifest.identity.version

    def begin(self, directory: Path, manifest: Manifest, sharding: Sharding) -> None:
        """Begin that of the weights at `directory`, which `manifest` describes."""
        assert self._manifest is None, f"the checkpoint of version {self.version} is being written"
        temporary = checkpoint.begin(directory, manifest.epoch)
        self._temporary, self._directory = temporary, directory
        self._manifest = manifest.model_copy(update={"sharding": sharding})
        try:
            self._all(RankCalls.begin_checkpoint, temporary)
        except BaseException:
            self.forget()
            raise

    def finish(self, *, wait: bool) -> int | None:
        """The version whose checkpoint is in its place now; None when there is none, or not yet."""
        if self._manifest is None or self._temporary is None:
            return None
        if not all(self._all(RankCalls.is_checkpoint_written, wait)):
            return None
        manifest, self._manifest = self._manifest, None
        checkpoint.add_shards(self._temporary, self._directory, manifest)
        return manifest.identity.version

    def forget(self) -> None:
        """Give it up: its ranks are gone."""
        if self._manifest is not None and self._temporary is not None:
            checkpoint.discard(self._temporary)
        self._manifest = self._temporary = None
