"""A retrain from a command: stored, its trainer, and how far off-policy each of its steps was.

Invariants: a trainer is all that it needs: no engine, node, sandbox or rollout worker; every part
is idempotent and the run itself lives in Temporal and Postgres, so the same command resumes after
any interruption. How far off-policy a step is, its log-prob gap and its own figures tell
(docs/metrics.md). Imported by commands.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cli.operations.keeping import campaign_retrain
from cli.operations.keeping.campaign_retrain import RetrainOptions
from cli.operations.machine.cancelled_by import resumed_by
from cli.operations.machine.fleet import ONE_THREAD, Member
from cli.operations.machine.supervisor import Supervisor
from cli.operations.runs.local_campaign import until_left
from cli.operations.runs.run_launch import Conductor, conductor
from cli.operations.runs.run_to_end import run_to_end
from cli.operations.runs.stored_run import refuse_no_store, resuming
from cli.operations.runs.watch import require_finished
from infra.db.runs import campaigns
from infra.db.runs.campaign_record import CampaignRecord, Parent
from infra.db.training import fingerprints, policies, steps
from mainspring.config.settings import Settings
from mainspring.ids import CampaignId
from mainspring.status import CampaignKind, CampaignStatus, StepStatus

FIGURES = ("logprob_gap_max", "logprob_gap_k3", "num_gap_tokens", "ratio_mean", "kl", "loss")
"""Figures of each step in the summary: the first five tell how far off-policy it was."""


@dataclass(frozen=True, slots=True)
class TrainedAgain:
    """One step."""

    step: int
    of: int
    """Step of the other campaign whose batch it is."""
    figures: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Retrained:
    campaign: CampaignId
    source: Parent
    steps: list[TrainedAgain]
    model: Path
    """Hugging Face directory of the last version."""
    weights: str | None
    """SHA-256 of its weights; None: the campaign is not reproducible."""


async def retrain(
    home: Path | None,
    of: str,
    name: str,
    asked: RetrainOptions,
    say: Callable[[str], None],
    *,
    for_a_program: bool,
) -> Retrained:
    """The whole retrain, or what is left of it. Raises MainspringErrors; WorkFailed when it ended
    otherwise than finished."""
    refuse_no_store(home, of)
    with resumed_by(resuming(CampaignKind.TRAIN, name, home, of), say):
        async with conductor(home, say, for_a_program=for_a_program) as services:
            settings = services.settings
            record = await campaign_retrain.make(services.db, settings.home, of, name, asked)
            if not services.own_workers:
                return await _perform(services, record, [])
            await until_left(settings, record.id, say)
            with Supervisor(settings.home, record.id).holding():
                return await _perform(services, record, [_trainer(settings, record.id)])


def _trainer(settings: Settings, campaign: CampaignId) -> Member:
    arguments = ["worker", "trainer", "--home", str(settings.home), "--campaign", campaign]
    return Member("trainer", arguments, environment=dict(ONE_THREAD))


async def _perform(services: Conductor, record: CampaignRecord, members: list[Member]) -> Retrained:
    db = services.db
    record = await campaigns.get(db, record.id)
    if record.status is not CampaignStatus.FINISHED:
        record = await run_to_end(
            db,
            services.client,
            record.id,
            members,
            services.settings,
            services.say,
            for_a_program=services.for_a_program,
        )
    require_finished(record, "the same command resumes it after its newest version")
    return await _outcome(services, record)


async def _outcome(services: Conductor, record: CampaignRecord) -> Retrained:
    db, source = services.db, record.parent
    newest = await policies.latest_policy(db, record.id)
    assert source is not None and source.order is not None and newest is not None
    of = dict(enumerate(source.order, source.version + 1))
    trained = [
        TrainedAgain(each.step, of[each.step], {name: each.metrics.get(name) for name in FIGURES})
        for each in await steps.list_steps(db, record.id)
        if each.status is StepStatus.DONE
    ]
    fingerprint = await fingerprints.of_version(db, record.id, newest.version)
    weights = None if fingerprint is None else fingerprint.weights
    return Retrained(record.id, source, trained, Path(newest.path), weights)
