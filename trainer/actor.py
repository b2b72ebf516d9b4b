"""The Ray actor around one `trainer.rank.TrainerRank`.

Light on purpose: torch and Megatron are imported inside the actor's process, so the driver never
loads them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from mainspring.config import CampaignConfig

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from trainer.rank import TrainerRank


class RankActor:
    def __init__(self, rank: int, world_size: int):
        self._rank_index = rank
        self._world_size = world_size
        self._store: TCPStore | None = None
        self._rank: TrainerRank | None = None

    def open_store(self) -> tuple[str, int]:
        """On rank 0: open the rendezvous on a free port; returns where the others find it."""
        from torch.distributed import TCPStore

        host = ray.util.get_node_ip_address()
        self._store = TCPStore(host, 0, self._world_size, is_master=True, wait_for_workers=False)
        return host, self._store.port

    def start(self, config: CampaignConfig, model_dir: Path, host: str, port: int) -> None:
        from torch.distributed import TCPStore

        from trainer.rank import TrainerRank

        store = self._store or TCPStore(host, port, self._world_size, is_master=False)
        self._rank = TrainerRank(
            config,
            model_dir,
            rank=self._rank_index,
            world_size=self._world_size,
            store=store,
        )

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._rank, method)(*args, **kwargs)
