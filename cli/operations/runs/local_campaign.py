"""A campaign with everything it needs on this machine: services, engines, workers, trainer, report.

Invariants: what is missing is said before anything is stored or started; every part is idempotent,
so the same command resumes after any interruption, and a campaign that was cancelled or failed
continues at its next step; a finished campaign only writes its report again; one process at a time
does this for a campaign of a home folder.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from temporalio.service import RPCError

from cli.operations.checks import checklist, task_items
from cli.operations.checks.checklist_item import Item, State
from cli.operations.checks.sandboxes_here import backends_here
from cli.operations.checks.task_checks import as_played
from cli.operations.machine import local_engines
from cli.operations.machine.cancelled_by import resumed_by
from cli.operations.machine.embedded_stack import ServiceState, status, up
from cli.operations.machine.fleet import (
    ONE_THREAD,
    Member,
    gateway_members,
    rollout_member,
    sandbox_member,
)
from cli.operations.machine.local_engines import Hardware, this_machine
from cli.operations.machine.spoken import spoken
from cli.operations.machine.supervisor import Supervisor
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs.campaign_changes import Agree, change_by_file
from cli.operations.runs.frozen_pages import write_report
from cli.operations.runs.run_to_end import run_to_end
from cli.operations.runs.watch import require_finished
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.log_setup import set_up
from infra.stack import ports
from infra.temporal.connection import connect
from infra.temporal.service import settled
from mainspring.artifacts import layout
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.settings import Settings, configured_settings, load_settings
from mainspring.config.training.parallel import Device
from mainspring.errors import ServiceError
from mainspring.ids import CampaignId, campaign_id, campaign_workflow
from mainspring.status import CampaignStatus

LEAVE_TIMEOUT_S = 600.0
"""A command leaves when nothing of its campaign lives, which is bounded, and writes its report."""
LOOK_S = 0.5
MAX_SANDBOXES = 128
"""Alive at once on this machine: enough replies in flight to be generated in batches."""


@dataclass(frozen=True, slots=True)
class CampaignOutcome:
    summary: dict[str, Any]
    report: Path
    temporal_ui: str


@dataclass(frozen=True, slots=True)
class Telling:
    """How the user hears of it."""

    say: Callable[[str], None]
    show: Callable[[Sequence[Item]], None]
    """The checklist, once."""
    agree: Agree
    """Asks whether a stored campaign is to be changed as its file was; raises if not."""
    for_a_program: bool = False
    """Standard output is: progress is shown on the other one."""


async def check(home: Path | None, config: CampaignConfig, telling: Telling) -> None:
    """The checklist alone; nothing is stored or started. Raises UsageError or ServiceError."""
    settings = load_settings(home)
    items = await checklist.of_this_machine(config, settings, this_machine())
    states = await status(settings.home)
    items += [_service_item(state, configured_settings(home)) for state in states]
    if all(state.healthy for state in states):
        async with open_database(settings) as db:
            items += await task_items.of_the_tasks(config, db)
    else:
        items += await task_items.of_the_tasks(config, None)
    telling.show(items)
    checklist.require(config.name, items)


def _service_item(state: ServiceState, configured: Settings) -> Item:
    """Embedded services are started, those that are configured are somebody else's to start."""
    name = state.service
    if state.healthy:
        return Item(name, State.OK, f"answers at {state.address}")
    variable = {"postgres": "database_url", "temporal": "temporal_address"}[name]
    if not getattr(configured, variable):
        return Item(name, State.STARTS, state.problem)
    fix = f"start it, or correct MAINSPRING_{variable.upper()}"
    return Item(name, State.MISSING, f"{state.address}: {state.problem}", fix, True)


async def until_left(configured: Settings, name: str, say: Callable[[str], None]) -> None:
    """Wait for a process that still ends what was cancelled, or writes the report of what ended:
    it is about to leave. One that trains is left to be refused."""
    supervisor = Supervisor(configured.home, name)
    begun = time.monotonic()
    last_sentence = ""
    while (pid := supervisor.pid()) is not None and time.monotonic() - begun < LEAVE_TIMEOUT_S:
        if not await _is_ending(configured.home, campaign_id(name)):
            return
        sentence = f"process {pid} ends campaign {name}: waiting until it has left"
        if sentence != last_sentence:
            say(sentence)
        last_sentence = sentence
        await asyncio.sleep(LOOK_S)


async def _is_ending(home: Path, campaign: CampaignId) -> bool:
    settings = load_settings(home)
    try:
        async with open_database(settings, pool_size=1) as db:
            stored = await campaigns.find(db, campaign)
            if stored is None or stored.status in campaigns.ENDS:
                return stored is not None
            client = await connect(await settled(settings, db))
            handle = client.get_workflow_handle(campaign_workflow(campaign))
            return await launch.is_being_cancelled(handle)
    except (ServiceError, RPCError):
        return False  # it is refused by its lock, whatever it does


async def train(
    home: Path | None,
    config: CampaignConfig,
    telling: Telling,
    *,
    resume: str,
    as_stored: bool = False,
) -> CampaignOutcome:
    """The whole campaign, or what is left of it. Raises MainspringErrors; Interrupted names the
    command `resume`. With `as_stored` a stored campaign of this name continues with the
    configuration that it was made with."""
    with resumed_by(resume, telling.say):
        return await _train(home, config, telling, as_stored)


async def _train(
    home: Path | None, config: CampaignConfig, telling: Telling, as_stored: bool
) -> CampaignOutcome:
    configured = configured_settings(home)
    await until_left(configured, config.name, telling.say)
    supervisor = Supervisor(configured.home, config.name)
    hardware = this_machine()
    config = await _on_a_device_here(configured, config, hardware, as_stored)
    # Before the home folder is made. Another process that trains it is named by `holding`: the
    # checklist would name its ports.
    if supervisor.pid() is None:
        items = await checklist.of_this_machine(config, configured, hardware)
        telling.show(items)
        checklist.require(config.name, items)
    with supervisor.holding():
        starting = "starting Temporal and Postgres"
        telling.say(starting)
        info = await spoken(
            up(configured.home), lambda: load_settings(home), telling.say, what=starting
        )
        settings = load_settings(info.home)
        set_up(settings.log_format, for_a_person=True)
        async with open_database(settings) as db:
            settings = await settled(settings, db)
            config = await _with_ports(db, config, as_stored)
            if await campaigns.find(db, campaign_id(config.name)) is None:
                items = await task_items.of_the_tasks(config, db)
                telling.show(items)
                checklist.require(config.name, items)
            if not as_stored:
                await change_by_file(db, config, telling.agree)
            campaign = await launch.create(db, config, here=await backends_here())
            config = training((await campaigns.get(db, campaign)).config)
            await _run(db, settings, config, campaign, hardware, telling)
            telling.say("writing the report")
            directory = layout.report(settings.home, campaign)
            report, figures = await write_report(db, settings, campaign, directory)
    return CampaignOutcome(figures, report, settings.temporal_link)


async def _run(
    db: Database,
    settings: Settings,
    config: CampaignConfig,
    campaign: CampaignId,
    hardware: Hardware,
    telling: Telling,
) -> None:
    """Everything up until the campaign has ended. Raises WorkFailed unless it finished."""
    if (await campaigns.get(db, campaign)).status is CampaignStatus.FINISHED:
        return
    if left_out := await launch.left_out(db, campaign):
        telling.say(left_out)
    client = await connect(settings, db)
    of_judges = [url for _, url in local_engines.judge_engines(config)]
    answering = await local_engines.answering([*config.policy.engines, *of_judges])
    engines = [url for url in config.policy.engines if url not in answering]
    of_judges = [url for url in of_judges if url not in answering and local_engines.is_here(url)]
    record = await run_to_end(
        db,
        client,
        campaign,
        [
            *members(settings, await as_played(db, config), engines, hardware),
            *local_engines.judge_members(settings, config, of_judges, hardware),
        ],
        settings,
        telling.say,
        for_a_program=telling.for_a_program,
    )
    require_finished(
        record,
        f"see {settings.home / 'logs'} and {settings.temporal_link}; then the same command resumes "
        "it",
    )


async def _on_a_device_here(
    configured: Settings, config: CampaignConfig, hardware: Hardware, as_stored: bool
) -> CampaignConfig:
    """On the CPU, where a version without `trainer.device` stored the campaign, the file has none
    either, and there is no GPU: it was trained so before."""
    is_given = not as_stored and "device" in config.trainer.model_fields_set
    elsewhere = hardware.gpus or configured.ray_address
    if is_given or elsewhere or config.trainer.device is Device.CPU:
        return config
    if not configured.database_url and not (configured.home / "lock").exists():
        return config  # no store, no stored campaign
    if not configured.database_url:
        await up(configured.home)
    async with open_database(load_settings(configured.home), pool_size=1) as db:
        stored = await campaigns.find(db, campaign_id(config.name))
    if stored is None or not stored.lacks_device:
        return config
    trainer = config.trainer.model_copy(update={"device": Device.CPU})
    return config.model_copy(update={"trainer": trainer})


async def _with_ports(db: Database, config: CampaignConfig, as_stored: bool) -> CampaignConfig:
    """With a free port where an engine's address asks for one (port 0): the one that the stored
    campaign has, else a new one."""
    stored = await campaigns.find(db, campaign_id(config.name))
    if stored is not None and as_stored:
        before = training(stored.config)
        if not stored.lacks_device:
            return before
        trainer = before.trainer.model_copy(update={"device": config.trainer.device})
        return before.model_copy(update={"trainer": trainer})
    engines = config.policy.engines
    if all(urlsplit(url).port != 0 for url in engines):
        return config
    if stored is not None and len(stored.config.policy.engines) == len(engines):
        engines = stored.config.policy.engines
    else:
        engines = tuple(_at_a_free_port(url) for url in engines)
    policy = config.policy.model_copy(update={"engines": engines})
    return config.model_copy(update={"policy": policy})


def _at_a_free_port(url: str) -> str:
    parts = urlsplit(url)
    if parts.port != 0:
        return url
    return urlunsplit(parts._replace(netloc=f"{parts.hostname}:{ports.pick()}"))


def members(
    settings: Settings,
    config: CampaignConfig,
    engines: Sequence[str] | None = None,
    hardware: Hardware | None = None,
) -> list[Member]:
    """One of each worker, on CPUs with a standby of the trainer, and an engine for each of
    `engines` (default: all of the campaign). `config`: with a section for each agent that plays."""
    hardware = hardware or this_machine()
    urls = config.policy.engines if engines is None else engines
    return [
        rollout_member(settings),
        sandbox_member(settings, capacity(config)),
        *gateway_members(settings, config),
        *_trainers(settings, config, hardware),
        *local_engines.engine_members(settings, config, urls, hardware),
    ]


def _trainers(settings: Settings, config: CampaignConfig, hardware: Hardware) -> list[Member]:
    """Alike, where there are two: either may be the one that trains, and the other stands by."""
    arguments = ["worker", "trainer", "--home", str(settings.home), "--campaign", config.name]
    trainer = Member("trainer", arguments, environment=dict(ONE_THREAD))
    if gpus := local_engines.gpus_of_trainer(config, hardware):
        trainer.environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if config.trainer.device is not Device.CPU or settings.ray_address:
        return [trainer]
    arguments.append("--standby")
    first_version = layout.policy(settings.home, campaign_id(config.name), 0)
    # Not beside the warm start, which would take longer.
    standby = Member("trainer-2", arguments, waits_for=first_version, environment=dict(ONE_THREAD))
    return [trainer, standby]


def capacity(config: CampaignConfig) -> int:
    """Sandboxes at once that the campaign can use, within what one machine holds."""
    trainer = config.trainer
    in_flight = (trainer.max_staleness + 1) * trainer.groups_per_step * trainer.group_size
    return min(MAX_SANDBOXES, max(in_flight, config.evaluation.concurrency))
