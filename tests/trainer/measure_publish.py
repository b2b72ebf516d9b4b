"""Seconds from weights in a trainer's rank to weights served, from files and over a process group.

    python -m tests.trainer.measure_publish [--hidden 1024] [--layers 8] [--engines 1 2] [--times 3]

A Qwen3 of random weights in float32, CPU engines as processes of this machine, one thread each, new
weights each time. Prints one line of JSON for each number of engines: GB of the model, medians
of the seconds per GB of an export alone (which both ways begin with), of what follows it from disk,
and over gloo.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import torch

from activities.training.sending import through_group
from infra.policy.engines.client import EngineClient
from infra.policy.engines.collective import updating
from infra.policy.weight_label import WeightLabel
from mainspring.model_folder.weights import SINGLE
from tests.infra.policy.engines import serving_process
from tests.infra.policy.tiny_model import save_tiny_model
from tests.trainer.senders import RankSource, run


async def measured(model: Path, engines: list[str], num_times: int, folder: Path) -> dict[str, Any]:
    source = RankSource(model)
    seconds: dict[str, list[float]] = {"export": [], "disk": [], "collective": []}
    size_gb = (model / SINGLE).stat().st_size / 1e9
    async with EngineClient(engines) as client:
        version = 0
        for _ in range(num_times):
            for way in ("disk", "collective"):
                version += 1
                for weight in source.rank._weights.named().values():
                    weight.mul_(1.001)  # or the engines have it already
                export, label = folder / f"v{version}", WeightLabel(version, "m")
                began = time.perf_counter()
                await run(source.rank.export_hf, export)
                seconds["export"].append(time.perf_counter() - began)
                began = time.perf_counter()
                if way == "disk":
                    await asyncio.gather(*(client.publish(url, export, label) for url in engines))
                else:
                    async with updating(client.weights, engines, export, label) as update:
                        await through_group(source, run, update)
                seconds[way].append(time.perf_counter() - began)
                shutil.rmtree(export)
        infos = [httpx.get(url + "/model_info").json() for url in engines]  # noqa: ASYNC210
    assert {info["weight_version"] for info in infos} == {f"{version}-m"}
    per_gb = {way: round(median(each) / size_gb, 3) for way, each in seconds.items()}
    spread = {way: [round(s / size_gb, 2) for s in sorted(each)] for way, each in seconds.items()}
    return {"engines": len(engines), "gb": round(size_gb, 3), "s_per_gb": per_gb, "all": spread}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mainspring-publish-") as folder:
        sizes = {"hidden_size": given.hidden, "intermediate_size": 3 * given.hidden}
        model = save_tiny_model(
            Path(folder, "model"), num_hidden_layers=given.layers, vocab_size=32_768, **sizes
        )
        for number in given.engines:
            with ExitStack() as stack:
                urls = [stack.enter_context(serving_process(model))[0] for _ in range(number)]
                found = asyncio.run(measured(model, urls, given.times, Path(folder)))
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
