"""Acts of an operator on a campaign: cancel, pause, resume, drop its batch, roll back a version.

Invariants: a campaign that does not run is named with its status, and the command fails; what is
dropped or rolled back is decided in the store, once, and the running workflow is told afterwards.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from cli.operations.machine.fleet_extensions import pollers
from cli.operations.runs.campaign_launch import is_being_cancelled
from cli.operations.runs.stored_run import resuming
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.runs import campaigns, events
from infra.db.runs.campaigns import CampaignRecord
from infra.db.runs.events import person
from infra.db.training import discards
from infra.temporal.lost_campaigns import settle_campaign
from mainspring.artifacts import layout
from mainspring.config.any_run import training
from mainspring.errors import UsageError
from mainspring.ids import ROLLOUT_QUEUE, CampaignId, campaign_workflow, group_workflow
from mainspring.protocol.campaign import BatchDropped
from mainspring.status import CampaignStatus, EventKind

TAKEN_TIMEOUT_S = 15.0
"""A worker that lives takes a workflow's task sooner, but on a machine that is overloaded."""
SAY_AFTER_S = 2.0
LOOK_S = 0.2
_WORDS = {
    CampaignStatus.CANCELLED: "has already been cancelled",
    CampaignStatus.CREATED: "has not begun",
}


async def refuse_ended(db: Database, name: str, verb: str) -> None:
    """Refuse by the row alone, without Temporal. Raises UsageError."""
    record = await campaign_named(db, name)
    if record.status in campaigns.ENDS:
        raise _does_not_run(record.id, record.status, verb)


async def tell_command(db: Database, campaign: CampaignId, text: str, by: str = "") -> None:
    """Write the event of a person's command that was taken. `by`: who gave it; empty: who runs this
    process."""
    event = events.Event(EventKind.COMMAND, campaign, text, campaign, by or person())
    await events.tell(db, event)


async def cancel(client: Client, db: Database, name: str, by: str = "") -> CampaignId:
    """`by`: as of `tell_command`. Raises UsageError when it does not run."""
    campaign = await _running(client, db, name, "cancel")
    try:
        await client.get_workflow_handle(campaign_workflow(campaign)).cancel()
    except RPCError as error:
        await _refuse_ended(error, client, db, campaign, "cancel")
    await tell_command(db, campaign, "campaign cancel", by)
    return campaign


async def set_paused(
    client: Client,
    db: Database,
    name: str,
    paused: bool,
    say: Callable[[str], None],
    by: str = "",
) -> str:
    """Pause or resume it; what came of that. The order is recorded at once and is taken when a
    worker runs, also after this command was aborted. `by`: as of `tell_command`. Raises UsageError
    when it does not run."""
    verb, done = ("pause", "paused") if paused else ("resume", "resumed")
    campaign = await _running(client, db, name, verb)
    handle = client.get_workflow_handle(campaign_workflow(campaign))
    if await is_being_cancelled(handle):
        record = await campaigns.get(db, campaign)
        raise UsageError(
            f"campaign {campaign} is being cancelled: nothing to {verb}",
            remedy=f"start it again with `{_resuming(record)}`",
        )
    try:
        await handle.signal("set_paused", paused)
    except RPCError as error:
        await _refuse_ended(error, client, db, campaign, verb)
    await tell_command(db, campaign, f"campaign {verb}", by)
    begun = time.monotonic()
    is_told = False
    while True:
        record = await campaigns.get(db, campaign)
        if record.status in campaigns.ENDS and paused:
            raise _does_not_run(campaign, record.status, verb)
        if record.status in campaigns.ENDS:
            return f"campaign {campaign} is {done}, and {record.status} since"
        worker, command = _worker_of(record)
        polling = await pollers(client, db, record.workflow_queue, "workflow")
        if not polling:
            return (
                f"campaign {campaign}: the order is recorded, and no {worker} runs. It is "
                f"{done} when one starts (`{_resuming(record)}`, or `{command}`)"
            )
        # A campaign that was not paused before shows by nothing that a worker took the order.
        if (record.status is CampaignStatus.PAUSED) is paused:
            return f"campaign {campaign} is {done}"
        if time.monotonic() - begun > TAKEN_TIMEOUT_S:
            return (
                f"campaign {campaign}: the order is recorded, and no {worker} has taken it "
                f"within {TAKEN_TIMEOUT_S:.0f} s ({', '.join(polling)}). It is {done} when one does"
            )
        if not is_told and time.monotonic() - begun > SAY_AFTER_S:
            is_told = True
            say(f"the order is recorded: waiting until a {worker} takes it ({polling[0]})")
        await asyncio.sleep(LOOK_S)


async def unserved(client: Client, db: Database, campaign: CampaignId | None = None) -> str:
    """A sentence where no worker runs that what was asked for waits for; else empty. `campaign`:
    whose; None: rollouts of any."""
    queue, worker = ROLLOUT_QUEUE, "rollout worker"
    if campaign is not None:
        record = await campaigns.get(db, campaign)
        queue, (worker, _) = record.workflow_queue, _worker_of(record)
    if await pollers(client, db, queue, "workflow"):
        return ""
    return f"no {worker} runs: it is done when one starts"


def _worker_of(record: CampaignRecord) -> tuple[str, str]:
    """The worker that runs its workflow, and the command that starts one."""
    if record.is_retrained:
        return "trainer", f"mainspring worker trainer --campaign {record.id}"
    return "rollout worker", "mainspring worker rollout"


def _resuming(record: CampaignRecord) -> str:
    return resuming(record.kind, record.id, retrained_from=record.retrained_from)


async def drop_batch(
    client: Client, db: Database, name: str, by: str = "", step: int | None = None
) -> str:
    """Drop the batch of the planned step; tells what was done. `by`: as of `tell_command`. `step`:
    the one that must be planned. Raises UsageError without one."""
    record = await _training(db, name)
    batch = await discards.planned_batch(db, record.id)
    if step not in (None, batch.step):
        raise UsageError(
            f"campaign {record.id}: step {step} is not planned any more, step {batch.step} is",
            remedy="look again at its steps",
        )
    await discards.drop_batch(db, record.id, batch, by or person())
    done = (
        f"campaign {record.id}: step {batch.step} is not planned any more; its "
        f"{len(batch.groups)} groups are masked and will be replaced by new ones"
    )
    handle = client.get_workflow_handle(campaign_workflow(record.id))
    try:
        await handle.signal("batch_dropped", BatchDropped(step=batch.step))
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return f"{done} when it is started again"
    return done


async def to_roll_back(db: Database, name: str) -> tuple[CampaignId, int]:
    """The version that a rollback discards. Raises UsageError while the campaign runs, and when
    there is no version to take back."""
    record = await _training(db, name)
    if record.status not in campaigns.ENDS:
        raise UsageError(
            f"campaign {record.id} is {record.status.value}: its versions are in use",
            remedy=f"run `mainspring campaign cancel {record.id}` first",
        )
    return record.id, await discards.newest_to_discard(db, record.id)


async def rollback(
    client: Client,
    db: Database,
    home: Path,
    name: str,
    by: str = "",
    expected: int | None = None,
) -> str:
    """Discard the newest policy version; tells what was done. `by`: as of `tell_command`.
    `expected`: the version that it must be. Raises UsageError as `to_roll_back`."""
    record = await _training(db, name)
    await settle_campaign(db, client, record.id)
    _, version = await to_roll_back(db, name)
    if expected not in (None, version):
        raise UsageError(
            f"campaign {record.id}: version {version} is the newest, not version {expected}",
            remedy="look again at its versions",
        )
    # First the files: a version that is made again must not find those of the discarded one.
    _set_aside(layout.policy(home, record.id, version))
    discarded = await discards.rollback(db, record.id, version, by or person())
    for group in discarded.was_running if discarded else ():
        try:
            await client.get_workflow_handle(group_workflow(group)).cancel()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
    num_groups = len(discarded.groups) if discarded else 0
    return (
        f"campaign {record.id}: policy version {version} is discarded, version {version - 1} is "
        f"the newest; {num_groups} groups are masked and will be replaced when it is started again"
    )


async def _training(db: Database, name: str) -> CampaignRecord:
    record = await campaign_named(db, name)
    training(record.config)
    return record


async def _running(client: Client, db: Database, name: str, verb: str) -> CampaignId:
    """The row is corrected first: Temporal takes a cancel of an ended workflow without a word."""
    campaign = (await campaign_named(db, name)).id
    await settle_campaign(db, client, campaign)
    status = (await campaigns.get(db, campaign)).status
    if status in campaigns.ENDS:
        raise _does_not_run(campaign, status, verb)
    return campaign


async def _refuse_ended(
    error: RPCError, client: Client, db: Database, campaign: CampaignId, verb: str
) -> NoReturn:
    """It ended, or has not begun, since its row was read."""
    if error.status is not RPCStatusCode.NOT_FOUND:
        raise error
    await settle_campaign(db, client, campaign)
    raise _does_not_run(campaign, (await campaigns.get(db, campaign)).status, verb) from None


def _does_not_run(campaign: CampaignId, status: CampaignStatus, verb: str) -> UsageError:
    how = _WORDS.get(status, f"has already {status.value}")
    return UsageError(
        f"campaign {campaign} {how}: nothing to {verb}",
        remedy="`mainspring campaign list` lists those that run",
    )


def _set_aside(directory: Path) -> None:
    """Under a name that no version has."""
    if not directory.exists():
        return
    number = 1
    while (aside := directory.with_name(f"{directory.name}.discarded-{number}")).exists():
        number += 1
    directory.rename(aside)
