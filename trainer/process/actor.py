"""The Ray actor around one `trainer.process.rank.TrainerRank`.

Light on purpose: torch and Megatron are imported inside the actor's process, so the driver never
loads them.
"""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from mainspring.algorithms.choice import find_engine, find_loss
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import MainspringError
from mainspring.training.sending import Meeting
from mainspring.trajectories.samples import Sample
from trainer.process.batch_file import BatchFile
from trainer.process.rank_calls import RankCalls, SenderCalls
from trainer.process.rank_log import bound, redirect

if TYPE_CHECKING:
    from trainer.process.rank import TrainerRank
    from trainer.process.sender import WeightSender


PULSE_GROUP = "pulse"


class RankActor:
    def __init__(self, rank: int, world_size: int):
        self._rank_index = rank
        self._world_size = world_size
        self._store: Any = None
        self._rank: TrainerRank | None = None
        self._log: Path | None = None
        self._batch: list[Sample] = []

    def warm(self, config: CampaignConfig) -> None:
        """Import what a rank of this configuration needs, ahead of `start`."""
        import trainer.process.rank  # noqa: F401

        find_engine(config.trainer)
        find_loss(config.trainer)

    def open_store(self) -> tuple[str, int]:
        """On rank 0: open the rendezvous on a free port; returns where the others find it."""
        from trainer.model.processes import open_store

        host = ray.util.get_node_ip_address()
        self._store = open_store(host, self._world_size)
        return host, self._store.port

    def start(
        self, config: CampaignConfig, model_dir: Path, host: str, port: int, log: Path | None
    ) -> int:
        """Build the rank; its process id. What the process prints from here on goes to `log`."""
        if log is not None:
            self._log = log
            redirect(log)
        from trainer.model.processes import reach_store
        from trainer.process.rank import TrainerRank

        store = self._store or reach_store(host, port, self._world_size)
        with _in_log():
            self._rank = TrainerRank(
                config,
                model_dir,
                rank=self._rank_index,
                store=store,
            )
        return os.getpid()

    @ray.method(concurrency_group=PULSE_GROUP)
    def pulse(self) -> None:
        """Answered in a thread of its own, also while the rank computes."""

    def open_batch(self, batch: BatchFile) -> None:
        """Map it for the next `call_on_batch`, apart from it: a rank that cannot must not leave the
        others waiting in a collective. Raises BatchFileDamaged."""
        self._batch = batch.samples()

    def call_on_batch(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a `BatchMethod` of the rank, by its name."""
        batch, self._batch = self._batch, []
        return self.call(method, batch, *args, **kwargs)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of `RankCalls`, by its name: the driver has no more of the class."""
        if self._log is not None:
            bound(self._log)
        with _in_log():
            rank: RankCalls | None = self._rank
            return getattr(rank, method)(*args, **kwargs)

    def open_meeting(self, name: str, num_engine_ranks: int) -> Meeting | None:
        """See `WeightSender.open`."""
        return self._sender.open(ray.util.get_node_ip_address(), name, num_engine_ranks)

    def sending(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of `SenderCalls`, by its name."""
        sender: SenderCalls = self._sender
        return getattr(sender, method)(*args, **kwargs)

    @property
    def _sender(self) -> "WeightSender":
        assert self._rank is not None, "the rank was not started"
        return self._rank.sender


@contextmanager
def _in_log() -> Iterator[None]:
    """Print an unexpected error with its traceback: the driver tells its last line alone, and which
    file has the rest."""
    try:
        yield
    except MainspringError:
        raise
    except Exception:
        traceback.print_exc()
        raise
