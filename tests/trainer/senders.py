"""A trainer's rank in this process, as what sends its weights to engines."""

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from activities.training.sending import through_group
from infra.policy.engines.client import EngineClient
from infra.policy.engines.collective import updating
from infra.policy.weight_label import WeightLabel
from mainspring.config.campaign import CampaignConfig
from mainspring.training.sending import Bucket, Meeting
from trainer.process.rank import TrainerRank

SMALL_BYTES = 8 << 10
"""Of a bucket: the tiny model takes several."""


class RankSource:
    """`on_bucket` is called with the number of the bucket that is sent next."""

    def __init__(self, model: Path, on_bucket: Callable[[int], None] = lambda number: None) -> None:
        config = CampaignConfig.model_validate(
            {"name": "sent", "policy": {"model": str(model)}, "trainer": {"device": "cpu"}}
        )
        self.rank = TrainerRank(config, model)
        self.num_buckets = 0
        self._on_bucket = on_bucket

    def open_meetings(self, name: str, num_engine_ranks: int) -> list[Meeting]:
        meeting = self.rank.sender.open("127.0.0.1", name, num_engine_ranks)
        assert meeting is not None
        return [meeting]

    def meet(self, timeout_s: float) -> None:
        self.rank.sender.meet(timeout_s)

    def gather(self, max_bytes: int) -> list[Bucket]:
        found = self.rank.sender.gather(max_bytes)
        return [] if found is None else [found]

    def send(self) -> None:
        self._on_bucket(self.num_buckets)
        self.num_buckets += 1
        self.rank.sender.send()

    def part(self) -> None:
        self.rank.sender.close()


async def run(function: Callable[..., Any], *arguments: object) -> Any:
    return await asyncio.to_thread(function, *arguments)


async def send(
    source: RankSource, client: EngineClient, engines: list[str], weights: Path, label: WeightLabel
) -> None:
    async with updating(client.weights, engines, weights, label) as update:
        await through_group(source, run, update, bucket_bytes=SMALL_BYTES)


async def _main(model: Path, killed_at: int, engines: list[str]) -> None:
    def on_bucket(number: int) -> None:
        if number == killed_at:
            signal.raise_signal(signal.SIGKILL)

    async with EngineClient(engines) as client:
        await send(RankSource(model, on_bucket), client, engines, model, WeightLabel(1, "a"))


if __name__ == "__main__":
    # python -m tests.trainer.senders MODEL BUCKET URL ..: killed before it sends that bucket.
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
