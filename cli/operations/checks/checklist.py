"""Needs of a campaign before it is stored: found, missing, or not visible from this machine.

Invariants: looking changes nothing; whatever is missing comes with what to do about it; what only
other machines can see is a warning, never a refusal. Used by `mainspring train`, which starts the
processes itself, and by `mainspring campaign start`, which does not.
"""

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from temporalio.client import Client

from cli.operations.checks.agent_items import bundle_items
from cli.operations.checks.checklist_item import Item, State
from cli.operations.checks.judge_engine_item import judge_engine_item
from cli.operations.checks.memory_item import memory_here, memory_item
from cli.operations.checks.model_item import as_before, model_bytes, model_item
from cli.operations.checks.named_parts import unusable
from cli.operations.checks.sandboxes_here import backends_here, probe_here
from cli.operations.checks.shared_devices import not_lending
from cli.operations.machine import fleet_extensions, local_engines
from cli.operations.machine.gpus_here import gpus_here
from cli.operations.machine.local_engines import EngineKind, Hardware
from infra.db.database import Database
from infra.db.nodes import engines
from infra.db.nodes.clocks import clocks
from infra.policy.engines.engine_check import check_engine
from infra.sandbox.protocol import BackendUnavailable
from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.colocated import ranks_elsewhere
from mainspring.config.files.pairs import warnings
from mainspring.config.section import BUNDLED
from mainspring.config.settings import Settings
from mainspring.config.training.parallel import FSDP, Device
from mainspring.errors import EngineError, ServiceError, UsageError
from mainspring.ids import (
    GRADE_QUEUE,
    ROLLOUT_QUEUE,
    SANDBOX_QUEUE,
    campaign_id,
    trainer_queue,
    waiting_trainer_queue,
)
from mainspring.status import PolicyApi
from mainspring.tasks.sandbox_choice import backend_name
from mainspring.words.figures import clock_told

SPARE_BYTES = 2 << 30
"""Postgres, Temporal, logs and reports of a campaign of some hours."""
BYTES_PER_PARAMETER = 16
"""Size of one checkpoint: weights, two moments and the exported copy, four bytes each."""
TRAINER_LIBRARIES = ("torch", "ray", "megatron")
"""The engine `fsdp` does without the last one."""


def require(campaign: str, items: Sequence[Item]) -> None:
    """Refuse what lacks something; its checklist was shown, which has what to do. Raises UsageError
    or ServiceError."""
    missing = [item for item in items if item.state is State.MISSING]
    if not missing:
        return
    kind = ServiceError if all(item.is_service for item in missing) else UsageError
    names = ", ".join(dict.fromkeys(item.what for item in missing))
    raise kind(
        f"campaign {campaign} cannot start, nothing was stored; missing: {names}",
        remedy='see the lines "missing" of the checklist above',
    )


NO_SGLANG = "SGLang is not installed here, and MAINSPRING_SGLANG_ENV names no other environment"


async def of_this_machine(
    config: CampaignConfig, settings: Settings, hardware: Hardware
) -> list[Item]:
    """Needs of `mainspring train` on this machine, before any service is asked."""
    model = as_before(model_item(config), config, settings.home)
    items = [
        model,
        *_named_items(config),
        *_setting_items(config),
        *(
            [
                await _engine_here(config, url, settings, hardware)
                for url in config.policy.engines
                if model.state is State.OK
            ]
        ),
        *[
            await judge_engine_item(config, name, url, hardware)
            for name, url in local_engines.judge_engines(config)
        ],
        await _sandbox_item(config, settings),
        *bundle_items(config),
        _trainer_item(config, settings.ray_address),
        _gpu_item(config, hardware, settings.ray_address),
        _disk_item(config, settings.home),
    ]
    if model.state is State.OK and not settings.ray_address:
        memory = memory_item(config, gpus_here(), memory_here())
        items += [] if memory is None else [memory]
    return items


def _named_items(config: CampaignConfig) -> list[Item]:
    """Agent, reward, backend and algorithms, where one cannot be used."""
    return [
        Item(what, State.MISSING, error.message, error.remedy) for what, error in unusable(config)
    ]


def _setting_items(config: CampaignConfig) -> list[Item]:
    """Settings that do nothing together, or not what they tell."""
    return [Item("settings", State.WARNING, warning) for warning in warnings(config)]


async def of_the_fleet(
    config: CampaignConfig, settings: Settings, client: Client, db: Database
) -> list[Item]:
    """Engines and workers elsewhere, as far as `mainspring campaign start` can see them."""
    model = model_item(config)
    items = [model, *_named_items(config), *_setting_items(config)]
    for url in config.policy.engines if model.state is State.OK else ():
        if urlsplit(url).port == 0:
            fix = "give the engine's port in policy.engines, or use mainspring train"
            items.append(Item(f"engine {url}", State.MISSING, "port 0 is not an address", fix))
            continue
        item = await engine_item(config, url, settings)
        if item is None:
            fix = f"start it: {_by_hand(config, settings)}"
            item = Item(f"engine {url}", State.WARNING, "does not answer to this machine", fix)
        items.append(item)
    campaign = campaign_id(config.name)
    if not config.policy.engines and not await engines.members(db, campaign, ()):
        text = 'none is registered, and policy.engines is "registered"'
        fix = f"start some: mainspring serve --model DIR --campaign {config.name}"
        items.append(Item("engines", State.WARNING, text, fix))
    trainer = trainer_queue(campaign)
    for what, queue, kind, command in (
        ("rollout worker", ROLLOUT_QUEUE, "workflow", "mainspring worker rollout"),
        ("sandbox node", SANDBOX_QUEUE, "activity", "mainspring worker sandbox"),
        ("grading", GRADE_QUEUE, "activity", "mainspring worker sandbox"),
        ("trainer", trainer, "activity", f"mainspring worker trainer --campaign {config.name}"),
    ):
        if await fleet_extensions.pollers(client, db, queue, kind):
            items.append(Item(what, State.OK, f"polls queue {queue}"))
        elif queue == trainer and await fleet_extensions.pollers(
            client, db, waiting_trainer_queue(campaign), "activity"
        ):
            items.append(Item(what, State.OK, "waits for this campaign to be started"))
        else:
            items.append(Item(what, State.WARNING, f"nothing polls queue {queue}", command))
    items += await _clock_items(db)
    return items + await _extension_items(config, client, db)


async def _clock_items(db: Database) -> list[Item]:
    """Machines whose clocks are off: no decision is made by them, people read them in logs."""
    fix = "synchronise its clock (chrony, systemd-timesyncd)"
    return [
        Item(f"clock of {whose}", State.WARNING, sentence, fix)
        for whose, off_s in (await clocks(db)).items()
        if (sentence := clock_told(off_s))
    ]


async def _extension_items(config: CampaignConfig, client: Client, db: Database) -> list[Item]:
    """Extensions of your own, as the processes of the fleet can import them."""
    reports = await fleet_extensions.ask(client, db, config)
    items: list[Item] = []
    for report in reports:
        for problem in report.problems or ():
            text = f"{report.who}: {problem}"
            items.append(Item("extensions", State.MISSING, text, fleet_extensions.INSTALL))
        if report.problems is None:
            fix = "if it still runs, look at its log"
            items.append(Item("extensions", State.WARNING, f"{report.who} does not answer", fix))
    if num_fit := sum(answer.problems == [] for answer in reports):
        who = "1 process" if num_fit == 1 else f"{num_fit} processes"
        items.append(Item("extensions", State.OK, f"imported by {who}"))
    return items


async def engine_item(config: CampaignConfig, url: str, settings: Settings) -> Item | None:
    """The server at `url`; None when no HTTP server answers there."""
    if not await local_engines.answering([url]):
        return None
    what, model = f"engine {url}", config.policy.model
    if not config.policy.api.gives_tokens:
        return Item(what, State.OK, "answers")
    try:
        served = await check_engine(
            url,
            api_key=settings.policy_api_key.get_secret_value(),
            model_dir=None if model == BUNDLED else Path(model),
            max_context=config.policy.max_context,
            adapter_rank=config.adapter_rank,
            api=config.policy.api,
            trained_at=config.policy.rollout_temperature,
        )
    except EngineError as error:
        return Item(what, State.MISSING, error.message, error.remedy, True)
    if served.mismatch:
        fix = "start an engine with policy.model, or correct policy.engines"
        return Item(what, State.MISSING, served.mismatch, fix)
    if why := await not_lending(config, url, settings):
        return Item(what, State.MISSING, why.message, why.remedy, True)
    if config.schedule is Schedule.REPRODUCIBLE and not served.reproducible:
        text = "its replies depend on which requests run together"
        fix = f'start it again: {_by_hand(config, settings)}; or set schedule = "fastest"'
        return Item(what, State.MISSING, text, fix)
    kind = served.architectures[0] if served.architectures else served.model_type
    return Item(what, State.OK, f"answers, serves {kind} from {served.model_path}")


async def _engine_here(
    config: CampaignConfig, url: str, settings: Settings, hardware: Hardware
) -> Item:
    what = f"engine {url}"
    if urlsplit(url).port != 0 and (answered := await engine_item(config, url, settings)):
        return answered
    by_hand = _by_hand(config, settings)
    if not local_engines.is_here(url) or config.policy.api is not PolicyApi.SGLANG:
        return Item(what, State.MISSING, "does not answer", f"start it: {by_hand}", True)
    if local_engines.kind_for(config, hardware) is EngineKind.SGLANG:
        return Item(what, State.STARTS, "SGLang on this machine's GPUs")
    why = "no GPU here" if not hardware.gpus else NO_SGLANG
    if config.policy.model == BUNDLED:
        why = "bundled model"
    elif config.schedule is Schedule.REPRODUCIBLE:
        why = "reproducible schedule"
    size = 0 if config.policy.model == BUNDLED else model_bytes(Path(config.policy.model))
    if size > local_engines.MAX_CPU_BYTES:
        fix = f"start SGLang from its own environment: {by_hand} --engine sglang"
        if config.schedule is Schedule.REPRODUCIBLE:
            fix = 'take a smaller model, or set schedule = "fastest" and start SGLang'
        return Item(
            what,
            State.MISSING,
            f"does not answer ({why}), and a model of {size / 1e9:.0f} GB is too large for the "
            "CPU engine",
            fix,
            True,
        )
    return Item(what, State.STARTS, f"the CPU engine ({why})")


def _by_hand(config: CampaignConfig, settings: Settings) -> str:
    """The command that starts an engine for the campaign."""
    option = " --reproducible" if config.schedule is Schedule.REPRODUCIBLE else ""
    if config.policy.api is PolicyApi.VLLM:
        option = " --engine vllm"
    model = local_engines.served_first(settings, config)
    after = ""
    if config.policy.model == BUNDLED and not model.exists():
        after = " (when the trainer has made that folder; `mainspring train` starts both)"
    return f"mainspring serve --model {model}{option}{after}"


async def _sandbox_item(config: CampaignConfig, settings: Settings) -> Item:
    backends = await backends_here()
    works = list(backends.working())
    # Bundled tasks have no image.
    needed = await probe_here(backend_name(config.sandbox.backend, None), backends)
    by_all = config.sandbox.backend is not None or config.tasks.source == BUNDLED
    if by_all and isinstance(needed, BackendUnavailable):
        return Item("sandbox", State.MISSING, needed.message, needed.remedy, True)
    if isinstance(needed, BackendUnavailable) and not works:
        return Item("sandbox", State.MISSING, needed.message, needed.remedy, True)
    return Item("sandbox", State.OK, f"works: {', '.join(works)}")


def _trainer_item(config: CampaignConfig, ray_address: str) -> Item:
    is_fsdp = config.trainer.engine_name == FSDP
    needed = TRAINER_LIBRARIES[:-1] if is_fsdp else TRAINER_LIBRARIES
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    if absent:
        fix = "pip install 'mainspring[train]' (not into SGLang's environment)"
        return Item("trainer", State.MISSING, f"not installed: {', '.join(absent)}", fix)
    if elsewhere := ranks_elsewhere(config, ray_address):
        return Item("trainer", State.MISSING, elsewhere.message, elsewhere.remedy)
    library = "torch's FSDP" if is_fsdp else "Megatron-core"
    if ray_address:
        return Item("trainer", State.STARTS, f"{library} on the Ray cluster at {ray_address}")
    return Item("trainer", State.STARTS, f"Ray and {library} on this machine")


def _gpu_item(config: CampaignConfig, hardware: Hardware, ray_address: str) -> Item:
    world_size = config.trainer.world_size
    ranks = f"{world_size} rank{'s' if world_size > 1 else ''}"
    if config.trainer.device is Device.CPU:
        return Item("device", State.OK, f"{ranks} on CPU, as set by trainer.device")
    if ray_address:
        wait_s = config.trainer.placement_timeout_s
        text = f"{ranks} on CUDA: Ray has {wait_s:g} s to place them (trainer.placement_timeout_s)"
        return Item("device", State.OK, text)
    text = f"{ranks} on CUDA; GPUs here: {len(hardware.gpus)}"
    if config.trainer.colocate:
        text += ", which ranks and engines have in turns"
    if len(hardware.gpus) >= world_size:
        return Item("device", State.OK, text)
    fix = 'set trainer.device = "cpu" for a small model'
    if hardware.gpus:
        fix = "lower trainer.tensor_parallel or trainer.data_parallel"
    return Item("device", State.MISSING, text, fix)


def _disk_item(config: CampaignConfig, home: Path) -> Item:
    folder = home
    while not folder.exists():
        folder = folder.parent
    free, needed = shutil.disk_usage(folder).free, SPARE_BYTES + _checkpoint_bytes(config)
    text = f"{free / 1e9:.1f} GB free at {home}, about {needed / 1e9:.1f} GB needed"
    if free >= needed:
        return Item("disk", State.OK, text)
    fix = "free space, or choose a folder on another disk with --home"
    return Item("disk", State.MISSING, text, fix, True)


def _checkpoint_bytes(config: CampaignConfig) -> int:
    """Size of those that are kept and of the one being written."""
    if config.policy.model == BUNDLED:
        return 0
    directory = Path(config.policy.model)
    if not (directory / "config.json").is_file():
        return 0
    hf = local_engines.hf_config(directory)
    bytes_each = 4 if "32" in str(hf.get("dtype") or hf.get("torch_dtype")) else 2
    num_parameters = model_bytes(directory) // bytes_each
    trainer = config.trainer
    num_kept = trainer.keep_checkpoints + trainer.keep_best + 1
    return num_kept * BYTES_PER_PARAMETER * num_parameters
