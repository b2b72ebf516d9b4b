"""Forking a campaign: another one begins with one of its policy versions, optimizer included.

Invariants: files come first, each version complete under its name; the store's rows come last, in
one transaction, so a fork that was interrupted is not there, and the same command makes it; one
process at a time makes a fork of a name. The files are shared on disk where that is possible, and
belong to the fork: the parent may be pruned or deleted. Imported by commands.
"""

import asyncio
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.operations.checks.named_parts import check_named
from infra.db import store
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.runs import campaigns, forks
from infra.db.runs.campaign_record import CampaignRecord, Parent, digest_of
from infra.db.runs.changes import Values
from infra.db.runs.events import person
from infra.db.runs.forks import ForkedVersion
from infra.db.training import policies
from infra.db.training.policies import PolicyRecord
from mainspring.artifacts import layout
from mainspring.artifacts.layout import HF_DIRECTORY
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import ALWAYS, FieldChange, counts_of, latest
from mainspring.config.files.forks import forked, inherited
from mainspring.config.files.layers import keys_of
from mainspring.config.files.retrains import GAP_MODE
from mainspring.config.files.stored import stored_form
from mainspring.config.section import Counts
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, campaign_id
from mainspring.training.step_metrics import Origin
from trainer.engines import checkpoint
from trainer.engines.checkpoint import Identity


@dataclass(frozen=True, slots=True)
class ForkedCampaign:
    campaign: CampaignId
    parent: CampaignId
    version: int
    num_steps: int
    """Steps that it has left."""


async def fork(
    db: Database, home: Path, of: str, version: int | None, name: str, values: Values
) -> ForkedCampaign:
    """A campaign that begins with a policy version of another one (None: its newest with a
    checkpoint). Raises UsageError, ConfigError and CheckpointUnusable, and then nothing is left."""
    record = await campaign_named(db, of)
    parent = training(record.as_stored)
    campaigns.refuse_incomplete(record.id, record.incomplete)
    new = campaign_id(name)
    if await campaigns.find(db, new) is not None:
        raise forks.taken(new)
    if (source := record.retrained_from) is not None:
        values = [*_of_retrained(record, await campaigns.get(db, source)), *values]
    versions = await _versions(db, record, version)
    newest = versions[-1].version
    at_fork = training(record.at(newest + 1))
    config, since = forked(parent, at_fork, new, values)
    changes = await _changes(db, record, newest, since)
    last = latest(config, changes)
    if last.trainer.num_steps <= newest:
        raise UsageError(
            f"campaign {record.id} ends after step {last.trainer.num_steps}: a fork of version "
            f"{newest} has no step left",
            remedy=f"add --set trainer.num_steps={newest + 1} or more, or fork an older version",
        )
    check_named(last)
    async with forks.made_alone(db, new):
        if await campaigns.find(db, new) is not None:
            raise forks.taken(new)
        uid = str(uuid.uuid4())
        await asyncio.to_thread(copy_versions, home, record, config, uid, versions)
        begins = Parent(record.id, newest, await forks.first_index(db, record.id, newest))
        own = own_versions(home, new, versions)
        await forks.add(db, config, uid, record, begins, own, changes, person())
    return ForkedCampaign(new, record.id, newest, last.trainer.num_steps - newest)


def _of_retrained(record: CampaignRecord, source: CampaignRecord) -> Values:
    """Values of a fork that plays under weights of its own: the log-prob gap is enforced again
    where it was. Raises UsageError where new groups would not have the places of the next steps."""
    begins = record.parent
    assert begins is not None and begins.order is not None, f"{record.id} retrains nothing"
    first = begins.version + 1
    if training(record.config).repeats and begins.order != tuple(
        range(first, first + len(begins.order))
    ):
        raise UsageError(
            f"campaign {record.id} is reproducible and trains its batches in another order: a fork "
            "would not have the places of its next groups",
            remedy=f"fork {source.id}, or retrain it without --order",
        )
    if any(f"{GAP_MODE}.".startswith(f"{field}.") for field in begins.given):
        return []
    return [(keys_of(GAP_MODE), training(source.as_stored).trainer.gap.mode.value)]


async def _changes(
    db: Database, record: CampaignRecord, version: int, fields: Mapping[str, tuple[Any, Any]]
) -> list[FieldChange]:
    """The parent's, then those that are made with the fork."""
    number = max((change.number for change in record.changes), default=0)
    by, now = person(), await store.now(db)
    made = [
        FieldChange(
            number + place,
            field,
            before,
            after,
            ALWAYS if counts_of(field) is Counts.AT_ONCE else version + 1,
            by,
            now,
        )
        for place, (field, (before, after)) in enumerate(fields.items(), 1)
    ]
    return [*inherited(record.changes, version, fields), *made]


async def _versions(
    db: Database, record: CampaignRecord, version: int | None
) -> list[PolicyRecord]:
    """Version 0, the one before where rollouts are still played under it, and the one to begin
    with. Raises UsageError naming those that can be begun with."""
    stored = await policies.list_policies(db, record.id)
    by_version = {policy.version: policy for policy in stored}
    resumable = [each.version for each in stored if _can_begin(each, record, by_version)]
    if version is None and resumable:
        version = resumable[-1]
    if version not in resumable:
        what = "has no checkpoint" if version is None else f"has no checkpoint of version {version}"
        nearest = min(resumable, key=lambda each: (abs(each - (version or 0)), -each), default=None)
        raise UsageError(
            f"campaign {record.id} {what} on this machine to fork",
            remedy="it keeps the newest ones (trainer.keep_checkpoints)"
            if nearest is None
            else f"the nearest that it keeps is version {nearest}; all: "
            f"{', '.join(map(str, resumable))}",
        )
    before = [version - 1] if _plays_older(record) and version > 1 else []
    return [by_version[each] for each in dict.fromkeys([0, *before, version])]


def _can_begin(
    policy: PolicyRecord, record: CampaignRecord, by_version: dict[int, PolicyRecord]
) -> bool:
    if policy.checkpoint is None or not Path(policy.checkpoint).is_dir():
        return False
    before = by_version.get(policy.version - 1)
    return before is None or not _plays_older(record) or Path(before.path).is_dir()


def _plays_older(record: CampaignRecord) -> bool:
    """Whether the first step is of rollouts under the version before: of a reproducible campaign
    that plays ahead."""
    config = training(record.config)
    return config.repeats and config.trainer.max_staleness > 0


def copy_versions(
    home: Path,
    record: CampaignRecord,
    config: CampaignConfig,
    uid: str,
    versions: Sequence[PolicyRecord],
) -> None:
    """Make the files of these versions those of the new campaign `config`. Raises
    CheckpointUnusable, and then nothing is left."""
    new = CampaignId(config.name)
    folder = layout.policies(home, new)
    if folder.exists():  # left by an attempt that stored nothing
        shutil.rmtree(folder)
    of = Origin(campaign=record.id, uid=record.uid, config_digest=record.config_digest)
    digest = digest_of(stored_form(config))
    origin = Origin(campaign=new, uid=uid, config_digest=digest)
    try:
        for policy in versions:
            source = Path(policy.path).parent
            identity = Identity(origin=origin, version=policy.version)
            checkpoint.copy_as(source, of, layout.policy(home, new, policy.version), identity)
    except BaseException:
        shutil.rmtree(layout.campaign_folder(home, new), ignore_errors=True)
        raise


def own_versions(
    home: Path, new: CampaignId, versions: Sequence[PolicyRecord]
) -> list[ForkedVersion]:
    """Rows of the new campaign for these versions: the last one is that which it begins with."""
    own: list[ForkedVersion] = []
    for policy in versions:
        directory = layout.policy(home, new, policy.version)
        is_whole = policy is versions[-1] or policy.version == 0
        checkpoint = str(directory) if is_whole and policy.checkpoint is not None else None
        own.append(ForkedVersion(policy.version, str(directory / HF_DIRECTORY), checkpoint))
    return own
