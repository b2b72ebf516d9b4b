"""One workflow of two releases: the newer has a call more, behind a patch.

Imported by `test_changed_workflows`, as workflow code may not stand in a test's own module.
"""

from datetime import timedelta

from temporalio import activity, workflow

NAME = "changing"
LIMIT = timedelta(seconds=30)


@activity.defn
async def first() -> str:
    return "first"


@activity.defn
async def added() -> str:
    return "added"


class Steered:
    def __init__(self) -> None:
        self.num_told = 0

    @workflow.signal
    def proceed(self) -> None:
        self.num_told += 1

    async def _told(self, number: int) -> None:
        await workflow.wait_condition(lambda: self.num_told >= number)


@workflow.defn(name=NAME)
class OlderWorkflow(Steered):
    @workflow.run
    async def run(self) -> list[str]:
        done = [await workflow.execute_activity(first, start_to_close_timeout=LIMIT)]
        await self._told(1)
        return done


@workflow.defn(name=NAME)
class NewerWorkflow(Steered):
    @workflow.run
    async def run(self) -> list[str]:
        done = [await workflow.execute_activity(first, start_to_close_timeout=LIMIT)]
        if workflow.patched("added"):
            done.append(await workflow.execute_activity(added, start_to_close_timeout=LIMIT))
        await self._told(1)
        return done
