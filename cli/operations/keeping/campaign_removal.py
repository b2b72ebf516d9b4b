"""Deleting an ended run: its rows, its files, and its workflows in Temporal.

Invariants: a run that has not ended is refused by name; the mark in the store comes first, so that
what was interrupted is completed by the same command, and nothing starts the run meanwhile; files
that another run begins with stay; workflows that the server does not let go stay for its retention.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from cli.operations.machine.fleet_extensions import pollers
from cli.operations.machine.supervisor import Supervisor
from cli.operations.runs.campaign_launch import describe, describe_running
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.runs import campaign_rows, campaigns, events, removal
from infra.db.runs.campaigns import CampaignRecord
from infra.db.runs.events import Event, person
from infra.temporal.lost_campaigns import settle_campaign
from mainspring.artifacts import layout
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, campaign_workflow
from mainspring.status import CampaignStatus, EventKind

END_TIMEOUT_S = 60.0
"""A cancelled workflow that has workers ends sooner, but on a machine that is overloaded."""
LOOK_S = 0.5
CALLS_AT_ONCE = 16
"""To Temporal."""
_MAY_NOT = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)


@dataclass(frozen=True, slots=True)
class Doomed:
    """A run with all that a delete would remove."""

    campaign: CampaignId
    status: str
    num_rollouts: int
    num_bytes: int
    """Size of its files on this machine."""
    kept: tuple[str, ...]
    """Sentences on files that stay."""


@dataclass(slots=True)
class Deleted:
    campaign: CampaignId
    num_rollouts: int
    num_bytes: int
    num_workflows: int | None = 0
    """Removed from Temporal; None: it does not let this account remove them."""
    kept: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.campaign,
            "num_rollouts": self.num_rollouts,
            "num_bytes": self.num_bytes,
            "num_workflows": self.num_workflows,
            "kept": list(self.kept),
        }


async def look(client: Client, db: Database, home: Path, name: str) -> Doomed:
    """Look at all that a delete would remove. Raises UnknownId, and UsageError before the run has
    ended."""
    await db.check_own("a delete")
    record = await campaign_named(db, name)
    await settle_campaign(db, client, record.id)
    record = await campaigns.get(db, record.id)
    if record.status not in (*campaigns.ENDS, CampaignStatus.CREATED):
        handle = client.get_workflow_handle(campaign_workflow(record.id))
        described = await describe(handle)
        is_cancelled = (
            described is not None
            and described.raw_description.workflow_extended_info.cancel_requested
        )
        if not is_cancelled:
            raise _is_running(home, record)
    elif record.status is CampaignStatus.CREATED and await _runs(client, record.id):
        raise _is_running(home, record)
    async with db.transaction() as connection:
        number = await campaign_rows.num_rollouts(connection, record.id)
    folders, sentences = await _folders(db, home, record.id)
    size = await asyncio.to_thread(lambda: sum(map(_size, folders)))
    return Doomed(record.id, record.status.value, number, size, sentences)


async def delete(
    client: Client,
    db: Database,
    home: Path,
    doomed: Doomed,
    say: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> Deleted:
    """Remove it, or complete an interrupted removal. Raises UsageError when it was started since
    it was looked at."""
    campaign = doomed.campaign
    supervisor = Supervisor(home, campaign)
    with supervisor.noted() if (home / "lock").exists() else nullcontext():
        queue = (await campaigns.get(db, campaign)).workflow_queue
        await _until_ended(client, db, campaign, queue, say)
        uid = await removal.mark(db, campaign)
        await _terminate(client, campaign)
        forgotten = await _forget(client, campaign)
        folders, sentences = await _folders(db, home, campaign)
        await removal.remove(db, campaign, uid, progress)
        for folder in folders:
            await asyncio.to_thread(_remove, folder)
        text = f"campaign delete: {campaign} and its {doomed.num_rollouts} rollouts deleted"
        await events.tell(db, Event(EventKind.COMMAND, campaign, text, by=person()))
    return Deleted(campaign, doomed.num_rollouts, doomed.num_bytes, forgotten, sentences)


def _is_running(home: Path, record: CampaignRecord) -> UsageError:
    waits = record.status is CampaignStatus.CREATED
    pid = Supervisor(home, record.id).pid()
    by = "" if pid is None else f" (process {pid} brings its workers)"
    return UsageError(
        f"campaign {record.id} is {'about to start' if waits else record.status.value}{by}",
        remedy=f"run `mainspring campaign cancel {record.id}` first",
    )


async def _runs(client: Client, campaign: CampaignId) -> bool:
    handle = client.get_workflow_handle(campaign_workflow(campaign))
    return await describe_running(handle) is not None


async def _until_ended(
    client: Client, db: Database, campaign: CampaignId, queue: str, say: Callable[[str], None]
) -> None:
    """Let a cancelled workflow end in order; one that nothing ends is terminated."""
    begun = time.monotonic()
    is_told = False
    while await _runs(client, campaign):
        served = await pollers(client, db, queue, "workflow")
        if not served or time.monotonic() - begun > END_TIMEOUT_S:
            await _terminate(client, campaign)
        elif not is_told:
            is_told = True
            say(f"campaign {campaign} was cancelled: waiting until it has ended")
        await asyncio.sleep(LOOK_S)
    await settle_campaign(db, client, campaign)


async def _terminate(client: Client, campaign: CampaignId) -> None:
    """End what still runs of it: groups outlive a campaign that was terminated."""
    own = campaign_workflow(campaign)
    query = f"CampaignId = '{campaign}' AND ExecutionStatus = 'Running'"
    running = {workflow.id async for workflow in client.list_workflows(query)} | {own}

    async def end(workflow: str) -> None:
        try:
            await client.get_workflow_handle(workflow).terminate("its campaign is deleted")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    await _each(end, sorted(running))


async def _forget(client: Client, campaign: CampaignId) -> int | None:
    """Remove its closed workflows from Temporal: how many; None where that is not allowed."""
    query = f"CampaignId = '{campaign}'"
    workflows = [(workflow.id, workflow.run_id) async for workflow in client.list_workflows(query)]
    refused = False

    async def forget(workflow: tuple[str, str]) -> None:
        nonlocal refused
        execution = WorkflowExecution(workflow_id=workflow[0], run_id=workflow[1])
        try:
            if not refused:
                await client.workflow_service.delete_workflow_execution(
                    DeleteWorkflowExecutionRequest(
                        namespace=client.namespace, workflow_execution=execution
                    )
                )
        except RPCError as error:
            if error.status in _MAY_NOT:
                refused = True
            elif error.status is not RPCStatusCode.NOT_FOUND:
                raise

    await _each(forget, workflows)
    return None if refused else len(workflows)


async def _each(call: Callable[[Any], Any], items: list[Any]) -> None:
    slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def one(item: Any) -> None:
        async with slots:
            await call(item)

    await asyncio.gather(*map(one, items))


async def _folders(
    db: Database, home: Path, campaign: CampaignId
) -> tuple[list[Path], tuple[str, ...]]:
    """Folders and files of this machine that go, and a sentence for each that stays."""
    own = layout.campaign_folder(home, campaign)
    paths = [
        layout.report(home, campaign),
        layout.trainer_logs(home, campaign),
        Supervisor(home, campaign).log,
    ]
    sentences = []
    if own.exists():
        used = _users(own, await removal.configs_of_others(db, campaign))
        if used is None:
            paths.append(own)
        else:
            user, path = used
            sentences.append(f"{own} stays: {user} begins with {path}")
    return [folder for folder in paths if folder.exists()], tuple(sentences)


def _users(folder: Path, configs: dict[str, Any]) -> tuple[str, str] | None:
    """A run whose configuration names a file of the folder, and that file."""
    for name, config in sorted(configs.items()):
        for text in _texts(config):
            if text.startswith("/") and Path(text).resolve().is_relative_to(folder.resolve()):
                return name, text
    return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.lstat().st_size for file in files if file.is_file() and not file.is_symlink())


def _remove(path: Path) -> None:
    if path.is_file():
        path.unlink(missing_ok=True)
        return
    # Renamed first: a command that looks meanwhile finds all of it, or nothing.
    away = path.with_name(f".{path.name}.deleted")
    shutil.rmtree(away, ignore_errors=True)
    try:
        path.rename(away)
    except FileNotFoundError:
        return  # another delete has it
    shutil.rmtree(away, ignore_errors=True)
