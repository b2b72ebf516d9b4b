"""A process that calls a function, as a node does, until it is killed: FOLDER NODE NAME."""

import asyncio
import sys
from pathlib import Path

from infra.functions import process
from infra.functions.labelled import label_of
from infra.functions.messages import Start


async def hold(folder: str, node: str, name: str) -> None:
    start = Start(
        path=f"acting:{name}",
        task={"id": "t", "kind": "game", "source": "s", "split": "train", "issue": "i"},
        model_url="http://127.0.0.1:1/v1",
        key="k",
        options={},
        rollout="r",
        life=0,
        has_sandbox=False,
        memory_mb=1024,
    )
    async with process.running(start, (), label_of(node, name), Path(folder)) as function:
        print(function.pid, flush=True)
        end = await function.ended()
        print(end.result and end.result.data.decode(), flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(hold(*sys.argv[1:]))
