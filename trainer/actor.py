"""The Ray actor around one `trainer.rank.TrainerRank`.

Light on purpose: torch and Megatron are imported inside the actor's process, so the driver never
loads them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from mainspring.config import CampaignConfig

if TYPE_CHECKING:
    from trainer.rank import TrainerRank


class RankActor:
    def __init__(self, rank: int, world_size: int):
        self._rank_index = rank
        self._world_size = world_size
        self._store: Any = None
        self._rank: TrainerRank | None = None

    def open_store(self) -> tuple[str, int]:
        """On rank 0: open the rendezvous on a free port; returns where the others find it."""
        from trainer.processes import open_store

        host = ray.util.get_node_ip_address()
        self._store = open_store(host, self._world_size)
        return host, self._store.port

    def start(self, config: CampaignConfig, model_dir: Path, host: str, port: int) -> None:
        from trainer.processes import reach_store
        from trainer.rank import TrainerRank

        store = self._store or reach_store(host, port, self._world_size)
        self._rank = TrainerRank(
            config,
            model_dir,
            rank=self._rank_index,
            world_size=self._world_size,
            store=store,
        )

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._rank, method)(*args, **kwargs)
