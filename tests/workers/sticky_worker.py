"""A workflow that counts, and a worker of it to be killed.

python sticky_worker.py ADDRESS NAMESPACE TASK_QUEUE
"""

import asyncio
import sys

from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker


@workflow.defn(name="counting")
class Counting:
    def __init__(self) -> None:
        self._num = 0
        self._finished = False

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: self._finished)
        return self._num

    @workflow.update
    async def add(self) -> int:
        self._num += 1
        return self._num

    @workflow.signal
    def finish(self) -> None:
        self._finished = True


async def main(address: str, namespace: str, task_queue: str) -> None:
    client = await Client.connect(
        address, namespace=namespace, data_converter=pydantic_data_converter
    )
    await Worker(
        client,
        task_queue=task_queue,
        workflows=[Counting],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
