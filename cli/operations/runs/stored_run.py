"""A stored run by its name alone: its configuration, the command that resumes it, and its waits as
they are on this machine.

Invariant: nothing is made for a name that is not stored, not even services in a home that has no
store. Imported by the commands that train, measure, verify and show.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from cli.operations.machine.supervisor import Supervisor, starting
from cli.own_packages import import_from
from infra.db.connect import with_database
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.runs.campaigns import CampaignRecord
from mainspring.config.any_run import AnyRun
from mainspring.config.settings import configured_settings
from mainspring.errors import ConfigError, UsageError
from mainspring.status import CampaignKind
from mainspring.words.resuming import RESUMED_BY, resumed_by
from mainspring.words.wait import Wait

RunT = TypeVar("RunT", bound=AnyRun)

_COMMANDS: Mapping[CampaignKind, str] = {**RESUMED_BY, CampaignKind.TRAIN: "train"}
"""Those that bring their workers."""


def resuming(
    kind: CampaignKind, name: str, home: Path | None = None, retrained_from: str | None = None
) -> str:
    """The command that brings a run's workers and resumes it."""
    where = [] if home is None else ["--home", str(home)]
    if retrained_from is not None:
        return shlex.join([*resumed_by(kind, name, retrained_from).split(), *where])
    return f"mainspring {_COMMANDS[kind]} {shlex.join(['--name', name, *where])}"


def waits_here(home: Path, record: CampaignRecord, waits: Sequence[Wait]) -> list[Wait]:
    """Waits of a run, told as those of one whose workers may be brought by a command here."""
    supervisor = Supervisor(home, record.id)
    again = resuming(record.kind, record.id, retrained_from=record.retrained_from)
    return starting(waits, home, supervisor.pid(), again if supervisor.was_here() else "")


async def stored(db: Database, name: str, kind: type[RunT], home: Path | None = None) -> RunT:
    """The configuration of a run of this `kind`, whose own modules are found again where it was
    started from a file at this `home`. Raises UnknownId, and UsageError naming the command of
    another kind."""
    record = await campaign_named(db, name)
    if home is not None:
        import_from(Supervisor(home, record.id).imports())
    if not isinstance(record.config, kind):
        nouns = {CampaignKind.TRAIN: "a training campaign", CampaignKind.EVAL: "an evaluation"}
        raise UsageError(
            f"{record.id} is stored as {nouns.get(record.kind, f'a {record.kind} run')}",
            remedy=f"resume it with `{resuming(record.kind, record.id)}`, or give another --name",
        )
    refuse_retrained(record)
    return record.config


def refuse_retrained(record: CampaignRecord) -> None:
    """Refuse a campaign that trains stored batches alone: engines and nodes are not for it. Raises
    UsageError."""
    if (source := record.retrained_from) is not None:
        raise UsageError(
            f"campaign {record.id} trains the batches of {source} again, and plays no rollouts",
            remedy=f"resume it with `{resuming(record.kind, record.id, retrained_from=source)}`",
        )


async def stored_here(home: Path | None, name: str, kind: type[RunT]) -> RunT:
    """The same, with the embedded services started first where the home has a store."""
    from cli.operations.machine.embedded_stack import up  # it loads what few commands need

    refuse_no_store(home, name)
    configured = configured_settings(home)
    if not configured.database_url:
        await up(configured.home)
    return await with_database(home, lambda db: stored(db, name, kind, configured.home))


def refuse_no_store(home: Path | None, name: str) -> None:
    """Refuse a home that has no store, before services are made for it. Raises UsageError."""
    configured = configured_settings(home)
    if not configured.database_url and not (configured.home / "lock").exists():
        raise UsageError(
            f"no run {name} is stored: {configured.home} holds no store",
            remedy="give its file, or the folder of its store with --home",
        )


def changed(config: RunT, values: Mapping[str, Any], where: str) -> RunT:
    """With what was given beside the name: values by field, sections as tables. What may not
    change is refused when the run is stored. Raises ConfigError."""
    raw = config.model_dump(mode="json")
    for field, value in values.items():
        raw[field] = {**raw[field], **value} if isinstance(value, dict) else value
    try:
        return type(config).model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {field}: {first['msg']}") from None
