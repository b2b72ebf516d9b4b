"""`mainspring bench grade`: gold patches of many tasks, graded as a verification grades them.

A stack of its own for the time of the measurement, real workers and sandboxes; the tasks are
generated and know their fix. Every verdict is checked: a gold patch that does not resolve its task
is no grade to count.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from bundled.gold import make_gold_tasks
from cli.operations.machine.embedded_stack import temporary
from cli.operations.runs.run_launch import conductor
from infra.db.runs import runs
from infra.db.tasks import tasks
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.ids import campaign_id_at
from mainspring.status import Player

SOURCE = "bench-grade"
SEED = 0
IN_FLIGHT = 32
"""So that every core always has a grading that waits for it."""


async def measure(num_tasks: int, say: Callable[[str], None]) -> dict[str, Any]:
    """num_tasks, resolved, faults, wall_s (first claim to last verdict), grades_per_min."""
    async with (
        temporary("mainspring-bench-") as stack,
        conductor(stack.home, say, for_a_program=True) as run,
    ):
        await tasks.put_tasks(run.db, make_gold_tasks(SEED, SOURCE, num_tasks))
        record = await run.play(_config(num_tasks))
        seen = await runs.tally(run.db, record.id)
    return {
        "num_tasks": num_tasks,
        "resolved": seen.num_resolved,
        "faults": seen.num_masked,
        "wall_s": round(seen.wall_s, 2),
        "grades_per_min": round((seen.num_done - seen.num_masked) / seen.wall_s * 60, 1),
    }


def _config(num_tasks: int) -> VerificationConfig:
    return VerificationConfig(
        # Where a database is configured it outlives the bench: every measurement is a new run.
        name=campaign_id_at("bench", "grade", datetime.now()),
        tasks=TasksConfig(source=SOURCE),
        policy=PolicyConfig(model="none"),
        split="train",
        slice=f"0:{num_tasks}",
        players=(Player.GOLD,),
        concurrency=IN_FLIGHT,
    )
