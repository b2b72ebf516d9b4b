"""Adapters of a running engine beside plain transformers with the sum made; prints one JSON object.

    python -m tests.infra.policy.measure_adapters make DIR
    mainspring serve --model DIR/v0 --port 30999
    python -m tests.infra.policy.measure_adapters read DIR http://127.0.0.1:30999

For SGLang start its server on DIR/v0 with the options that `adapter_arguments` has; on a CPU with
`--lora-backend torch_native` and in float32. Model and adapters are tiny and random.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from infra.policy.engines.adapter_loading import loaded_at
from infra.policy.engines.client import EngineClient
from infra.policy.engines.engine_check import check_engine
from infra.policy.protocol import Completion, SamplingParams
from infra.policy.weight_label import WeightLabel
from tests.engine.adapter_folders import RANK, save_version
from tests.infra.policy.engines import Reference
from tests.infra.policy.tiny_model import save_tiny_model

PROMPT = list(range(20, 60))
NUM_VERSIONS = 4
NUM_LATER = 8
"""Versions that are published at the end, so that old ones are removed."""


def make(root: Path) -> None:
    base = save_tiny_model(root / "v0", hidden_size=64, intermediate_size=128, head_dim=16)
    for number in range(1, NUM_VERSIONS):
        save_version(root / f"v{number}", base, number)


async def read(root: Path, url: str) -> dict[str, Any]:
    versions = [root / f"v{number}" for number in range(NUM_VERSIONS)]
    references = [Reference(version) for version in versions]
    report = await check_engine(url, model_dir=versions[0], adapter_rank=RANK)

    def gap(reply: Completion, number: int) -> float:
        expected = references[number].logprobs(PROMPT, list(reply.output_ids))
        return max(abs(a - b) for a, b in zip(reply.logprobs, expected, strict=True))

    async def ask(client: EngineClient, count: int, name: str = "r") -> Completion:
        params = SamplingParams(count)
        return await client.generate(PROMPT, params, request_id=name, sticky=name)

    gaps: list[float] = []
    publish_s: list[float] = []
    async with EngineClient([url], model=versions[0], adapters=True) as client:
        for number, version in enumerate(versions):
            began = time.monotonic()
            await client.reconcile(url, version, WeightLabel(number, f"c{number}"))
            publish_s.append(time.monotonic() - began)
            reply = await ask(client, 60)
            assert {span.version for span in reply.spans} == {number}
            gaps.append(gap(reply, number))
        under_way = asyncio.create_task(ask(client, 600))
        await asyncio.sleep(0.3)
        beside = [asyncio.create_task(ask(client, 60, str(n))) for n in range(8)]
        await client.reconcile(url, versions[1], WeightLabel(NUM_VERSIONS, "later"))
        gaps.append(gap(await under_way, NUM_VERSIONS - 1))
        for reply in await asyncio.gather(*beside):
            [version] = {span.version for span in reply.spans}
            gaps.append(gap(reply, 1 if version == NUM_VERSIONS else NUM_VERSIONS - 1))
        for number in range(NUM_VERSIONS + 1, NUM_VERSIONS + 1 + NUM_LATER):
            await client.reconcile(url, versions[2], WeightLabel(number, "later"))
        gaps.append(gap(await ask(client, 60), 2))
        names = await loaded_at(client.weights.wire, url)
    async with EngineClient([url], any_weights=True) as evaluation:
        gaps.append(gap(await ask(evaluation, 60), 2))
    return {
        "mismatch": report.mismatch,
        "largest_gap": max(gaps),
        "num_replies": len(gaps),
        "publish_s": publish_s,
        "num_loaded": len(names),
    }


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        print(json.dumps(asyncio.run(read(Path(sys.argv[2]), sys.argv[3])), indent=2))
