"""A supervised run from a command: its data, its trainer, and the model that it leaves.

Invariant: every part is idempotent and the run itself lives in Temporal and Postgres, so the same
command resumes after any interruption; a stored run never reads its sources again.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.operations.checks.model_item import check_adapted
from cli.operations.checks.named_parts import check_named
from cli.operations.machine import fleet_extensions
from cli.operations.machine.cancelled_by import resumed_by
from cli.operations.machine.fleet import ONE_THREAD, Member, rollout_member
from cli.operations.machine.supervisor import Supervisor
from cli.operations.runs.local_campaign import until_left
from cli.operations.runs.run_launch import Conductor, conductor
from cli.operations.runs.run_to_end import run_to_end
from cli.operations.runs.sft_data import SftSamples, check_files
from cli.operations.runs.stored_run import resuming
from cli.operations.runs.watch import require_finished
from infra.db.runs import campaigns
from infra.db.training import policies, sft
from infra.db.training.sft import StoredSftData
from infra.policy.model.model_files import check_model_directory
from mainspring.config.section import BUNDLED
from mainspring.config.settings import Settings
from mainspring.config.sft import SftConfig
from mainspring.ids import CampaignId, campaign_id
from mainspring.planning.engine_facts import folder_use
from mainspring.status import CampaignStatus


@dataclass(frozen=True, slots=True)
class SftOutcome:
    name: str
    data: StoredSftData
    num_steps: int
    loss_first: float | None
    loss_last: float | None
    model: Path
    """Hugging Face directory of the last version."""


async def train_supervised(
    home: Path | None, config: SftConfig, say: Callable[[str], None], *, for_a_program: bool
) -> SftOutcome:
    """The whole run, or what is left of it. Raises MainspringErrors; WorkFailed when it ended
    otherwise than finished."""
    if config.policy.model != BUNDLED:
        check_model_directory(Path(config.policy.model), folder_use(config.trainer))
        check_adapted(Path(config.policy.model), config.trainer)
    check_named(config)
    check_files(config)
    with resumed_by(resuming(config.kind, config.name, home), say):
        async with conductor(home, say, for_a_program=for_a_program) as services:
            if not services.own_workers:
                return await _perform(services, config, [])
            settings = services.settings
            await until_left(settings, config.name, say)
            with Supervisor(settings.home, config.name).holding():
                return await _perform(services, config, members(settings, config))


def members(settings: Settings, config: SftConfig) -> list[Member]:
    """The processes that a run needs."""
    arguments = ["worker", "trainer", "--home", str(settings.home), "--campaign", config.name]
    return [rollout_member(settings), Member("trainer", arguments, environment=dict(ONE_THREAD))]


async def _perform(services: Conductor, config: SftConfig, fleet_of: list[Member]) -> SftOutcome:
    run = await store(services, config)
    db = services.db
    record = await campaigns.get(db, run)
    if record.status is not CampaignStatus.FINISHED:
        record = await run_to_end(
            db,
            services.client,
            run,
            fleet_of,
            services.settings,
            services.say,
            for_a_program=services.for_a_program,
        )
    require_finished(record, "the same command resumes it after its newest version")
    return await _outcome(services, config, run)


async def store(services: Conductor, config: SftConfig) -> CampaignId:
    """The run's id, once it is stored with its data."""
    db, run = services.db, campaign_id(config.name)
    if await campaigns.find(db, run) is not None:
        await campaigns.create(db, config)  # refuses another configuration
        return run
    if not services.own_workers:
        await fleet_extensions.require(services.client, db, config)
    with _model(config) as model:
        samples = SftSamples(db, config, model)
        await samples.check_campaigns()
        data = await sft.create(db, config, samples.read(), samples.complete)
    for line in samples.outcomes:
        services.say(line)
    skipped = f", {data.num_skipped} skipped as too long" if data.num_skipped else ""
    services.say(
        f"{data.num_samples} samples of {data.num_tokens} tokens, {data.num_trained_tokens} of "
        f"them trained{skipped}"
    )
    return run


@contextmanager
def _model(config: SftConfig) -> Iterator[Path]:
    """Tokenizer and sizes of the model; the bundled one is made by the trainer, where it runs."""
    if config.policy.model != BUNDLED:
        yield Path(config.policy.model)
        return
    from transformers.utils import logging

    from bundled.model import make_bundled_model

    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        directory = Path(folder) / "base"
        make_bundled_model(directory, config.seed)
        yield directory


async def _outcome(services: Conductor, config: SftConfig, run: CampaignId) -> SftOutcome:
    newest = await policies.latest_policy(services.db, run)
    assert newest is not None, f"{run} has finished without a version"
    losses = await sft.losses(services.db, run)
    return SftOutcome(
        name=run,
        data=await sft.data_of(services.db, run),
        num_steps=newest.version,
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses else None,
        model=Path(newest.path),
    )
