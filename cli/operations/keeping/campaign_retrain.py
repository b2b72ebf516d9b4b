"""Storing a retrain: a campaign that trains another one's stored batches again, from its first
weights.

Invariants: files come first, rows last and in one transaction, so a retrain that was interrupted
before it was stored is not there, and the same command makes it; the batches are fixed with it, and
stay the parent's groups, which are not copied; one process at a time makes one of a name. Imported
by commands.
"""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.operations.checks.named_parts import check_named
from cli.operations.keeping.campaign_fork import copy_versions, own_versions
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.runs import campaigns, forks
from infra.db.runs.campaign_record import CampaignRecord, Parent
from infra.db.runs.changes import Values
from infra.db.runs.events import person
from infra.db.training import batches, policies, steps
from infra.db.training.policies import PolicyRecord
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import latest
from mainspring.config.files.layers import name_of
from mainspring.config.files.retrains import inherited, retrained
from mainspring.config.run import RunConfig
from mainspring.config.section import MANY
from mainspring.errors import UsageError
from mainspring.ids import campaign_id
from mainspring.status import StepStatus
from mainspring.training.training_faults import CheckpointUnusable

_FILES = (
    "run the command where the campaign's files are, or restore them from an archive or a backup"
)


@dataclass(frozen=True, slots=True)
class RetrainOptions:
    """Options of the command."""

    values: Values = field(default_factory=tuple)
    num_steps: int | None = None
    """The first ones that are stored; None: all."""
    order: tuple[int, ...] | None = None
    """Stored steps to train, in this order; None: as they were."""

    @property
    def given(self) -> dict[str, object]:
        return {name_of(keys): value for keys, value in self.values}


async def make(
    db: Database, home: Path, of: str, name: str, asked: RetrainOptions
) -> CampaignRecord:
    """The stored campaign `name`, made unless it is there already. Raises UsageError and
    ConfigError, and then nothing is left."""
    record = await campaign_named(db, of)
    new = campaign_id(name)
    if (stored := await campaigns.find(db, new)) is not None:
        return _resumed(stored, record, asked)
    parent = _trained(record)
    config = retrained(parent, new, asked.values)
    changes = inherited(record.changes, asked.values)
    check_named(latest(config, changes))
    begins = record.parent.version if record.parent is not None else 0
    order = await _order(db, record, asked)
    await _refuse_removed(db, record, order)
    versions = await _first_versions(db, record, begins)
    async with forks.made_alone(db, new):
        if (stored := await campaigns.find(db, new)) is not None:
            return _resumed(stored, record, asked)
        uid = str(uuid.uuid4())
        try:
            await asyncio.to_thread(copy_versions, home, record, config, uid, versions)
        except CheckpointUnusable as error:
            raise UsageError(
                f"its first weights cannot be used: {error.message}", remedy=_FILES
            ) from error
        index = await forks.first_index(db, record.id, begins)
        source = Parent(record.id, begins, index, order, asked.given)
        own = own_versions(home, new, versions)
        await forks.add(db, config, uid, record, source, own, changes, person())
    return await campaigns.get(db, new)


def _trained(record: CampaignRecord) -> CampaignConfig:
    """Its configuration as it was stored. Raises UsageError for what has no batches of its own."""
    config = record.as_stored
    campaigns.refuse_incomplete(record.id, record.incomplete)
    if isinstance(config, RunConfig) and not config.policy.api.gives_tokens:
        raise UsageError(
            f"{record.kind} {record.id} has its rollouts as text (policy.api = "
            f'"{config.policy.api}"): no token ids and log-probs are stored to train on',
            remedy='name a campaign whose policy gives tokens (policy.api = "sglang" or "vllm"); '
            "`mainspring sft` trains on texts",
        )
    parent = training(config)
    if (source := record.retrained_from) is not None:
        raise UsageError(
            f"campaign {record.id} has no batches of its own: it trains those of {source}",
            remedy=f"run `mainspring campaign retrain {source} --as NEW`, with all settings",
        )
    return parent


def _resumed(
    stored: CampaignRecord, record: CampaignRecord, asked: RetrainOptions
) -> CampaignRecord:
    """The stored retrain, if it is the one that is asked for: what is not given now is as it was
    then. Raises UsageError."""
    source = stored.parent
    if source is None or source.order is None or source.campaign != record.id:
        raise forks.taken(stored.id)
    campaigns.refuse_incomplete(stored.id, stored.incomplete)
    order = source.order
    wanted = asked.order
    if asked.num_steps is not None:
        first = source.version + 1
        wanted = tuple(range(first, first + asked.num_steps))
    differs = [f"--set {field}" for field in asked.given.keys() ^ source.given.keys()]
    differs += [
        f"--set {field}"
        for field in asked.given.keys() & source.given.keys()
        if json.dumps(asked.given[field]) != json.dumps(source.given[field])
    ]
    differs = sorted(differs) if asked.values else []
    if wanted is not None and wanted != order:
        differs.append("--order" if asked.order is not None else "--steps")
    if differs:
        raise UsageError(
            f"campaign {stored.id} exists, and retrains {record.id} with another "
            f"{', '.join(differs)}",
            remedy="give the new campaign another name; without options the command resumes "
            f"{stored.id} as it was made",
        )
    return stored


async def _order(db: Database, record: CampaignRecord, asked: RetrainOptions) -> tuple[int, ...]:
    """The stored steps to train. Raises UsageError for those that are not there."""
    done = [each.step for each in await steps.list_steps(db, record.id) if _is_done(each)]
    if not done:
        raise UsageError(
            f"campaign {record.id} has no trained step: there is no batch to train again",
            remedy=f"wait for its first step (`mainspring campaign show {record.id}`)",
        )
    if asked.order is not None:
        if missing := [step for step in asked.order if step not in done]:
            raise UsageError(
                f"campaign {record.id} has no stored batch of step {missing[0]}: it has those of "
                f"steps {done[0]} to {done[-1]}",
                remedy="correct --order",
            )
        return asked.order
    num_steps = len(done) if asked.num_steps is None else asked.num_steps
    if num_steps > len(done):
        raise UsageError(
            f"campaign {record.id} has {len(done)} stored batches, {num_steps} were asked for",
            remedy=f"give --steps {len(done)} or fewer, or none for all of them",
        )
    return tuple(done[:num_steps])


def _is_done(step: steps.StepRecord) -> bool:
    return step.status is StepStatus.DONE


async def _refuse_removed(db: Database, record: CampaignRecord, order: Sequence[int]) -> None:
    removed = await batches.without_tokens(db, record.id, order)
    if not removed:
        return
    step, rollout = removed[0]
    more = f", and of {len(removed) - 1} more" if len(removed) > 1 else ""
    raise UsageError(
        f"campaign {record.id}: the tokens of rollout {rollout} (step {step}){more} are not stored "
        "any more",
        remedy="restore its archive into a home of its own, or leave these steps out with --steps "
        "or --order",
    )


async def _first_versions(db: Database, record: CampaignRecord, begins: int) -> list[PolicyRecord]:
    """Version 0, and the one that it began with where it is a fork. Raises UsageError."""
    stored = {policy.version: policy for policy in await policies.list_policies(db, record.id)}
    for version in dict.fromkeys([0, begins]):
        policy = stored.get(version)
        if policy is None or policy.checkpoint is None or not Path(policy.checkpoint).is_dir():
            place = "" if policy is None else f" ({policy.checkpoint or policy.path})"
            raise UsageError(
                f"campaign {record.id} has no checkpoint of version {version} on this machine"
                f"{place}: its first weights are not there",
                remedy=_FILES,
            )
    return [stored[version] for version in dict.fromkeys([0, begins])]


def parse_order(text: str) -> tuple[int, ...]:
    """Steps as "3,1,5-8". Raises UsageError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise UsageError(f"--order {text!r} is no list of steps", remedy="write it as 3,1,5-8")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] > MANY:
            raise UsageError(
                f"--order: {part.strip()} names no steps of a campaign",
                remedy="write it as 5-8, the smaller number first",
            )
        found += numbers
    step, times = Counter(found).most_common(1)[0]
    if times > 1:
        raise UsageError(
            f"--order names step {step} twice", remedy="a batch is trained once in a campaign"
        )
    return tuple(found)
