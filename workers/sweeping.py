"""The schedule of the sweep, made by whichever rollout worker starts first.

Invariant: any number of workers may call `ensure_schedule`, at once and again; a person's pause of
the schedule stays, only its interval follows the program.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError

from mainspring.errors import TemporalError
from mainspring.ids import ROLLOUT_QUEUE
from mainspring.protocol.names import Workflow
from mainspring.protocol.sweep import SweepInput

SCHEDULE = "mainspring-sweep"
SWEEP_EVERY = timedelta(minutes=1)
GIVE_UP_AFTER = timedelta(minutes=10)
"""A sweep that finds no worker or no database for this long leaves its place to the next."""


async def ensure_schedule(client: Client, every: timedelta = SWEEP_EVERY) -> None:
    """Raises TemporalError."""
    try:
        await _create_or_update(client, every)
    except RPCError as error:
        raise TemporalError(
            f"Temporal refused the schedule {SCHEDULE}: {error}",
            remedy="let this worker's account read and write schedules in the namespace",
        ) from None


async def _create_or_update(client: Client, every: timedelta) -> None:
    spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)])
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(
            Workflow.SWEEP,
            SweepInput(),
            id=Workflow.SWEEP,
            task_queue=ROLLOUT_QUEUE,
            execution_timeout=GIVE_UP_AFTER,
            static_summary="what the store believes alive, held against Temporal",
        ),
        spec=spec,
        # What was missed while the server was down need not be made up for.
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=every),
    )

    def follow(found: ScheduleUpdateInput) -> ScheduleUpdate | None:
        stored = found.description.schedule
        if [each.every for each in stored.spec.intervals] == [every]:
            return None
        return ScheduleUpdate(replace(stored, spec=spec))

    try:
        await client.create_schedule(SCHEDULE, schedule)
    except ScheduleAlreadyRunningError:
        await client.get_schedule_handle(SCHEDULE).update(follow)
