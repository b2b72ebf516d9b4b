"""Changing what a stored campaign runs with: on the command line, or by a file that has changed.

Invariants: what is shown before is made after it, or something newer is told; a change is stored
before anything else happens, and everything after it can be repeated. Imported by commands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from cli.operations.checks.named_parts import check_named
from cli.operations.runs import campaign_launch
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.runs import campaigns, changes
from infra.db.runs.changes import PendingChanges, Values
from infra.db.runs.events import person
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import FieldChange
from mainspring.ids import CampaignId, campaign_id, campaign_workflow
from mainspring.status import CampaignStatus

Agree = Callable[[PendingChanges], None]
"""Shows changes and asks; raises when they are not to be made."""


@dataclass(frozen=True, slots=True)
class Changed:
    campaign: CampaignId
    changes: Sequence[FieldChange]
    note: str
    """Sentence on how they count now."""


async def change(
    client: Client,
    db: Database,
    name: str,
    values: Values,
    agree: Agree,
    *,
    from_step: int | None = None,
    by: str = "",
) -> Changed:
    """Change fields of a campaign that is stored, and start it again if it has finished and gets
    more steps. `by`: who asks; empty: who runs this process. Raises UsageError and ConfigError
    before anything is stored."""
    record = await campaign_named(db, name)
    training(record.config)
    made = await _make(db, record.id, values, agree, from_step, by)
    if not made.changes:
        return Changed(record.id, (), "it has these values already")
    return Changed(record.id, made.changes, await _tell(client, db, made))


async def asked_for(
    db: Database, name: str, values: Values, from_step: int | None = None
) -> PendingChanges:
    """The changes that `change` would make now. Raises as that does."""
    record = await campaign_named(db, name)
    training(record.config)
    asked = await changes.pending(db, record.id, values, person(), from_step)
    if asked.changes:
        check_named(asked.config)
    return asked


async def change_by_file(
    db: Database, config: CampaignConfig, agree: Agree
) -> Sequence[FieldChange]:
    """Make the changes that a campaign's file has against what is stored, where all of them may be
    made; none for a campaign that is new. What may not be changed is refused when the campaign is
    started."""
    values = await campaigns.changed_values(db, config)
    if not values:
        return ()
    return (await _make(db, campaign_id(config.name), values, agree, None)).changes


async def _make(
    db: Database,
    campaign: CampaignId,
    values: Values,
    agree: Agree,
    from_step: int | None,
    by: str = "",
) -> PendingChanges:
    by = by or person()
    asked = await changes.pending(db, campaign, values, by, from_step)
    if not asked.changes:
        return asked
    check_named(asked.config)
    agree(asked)
    return await changes.add(db, campaign, values, by, from_step)


async def _tell(client: Client, db: Database, made: PendingChanges) -> str:
    """Have the campaign look at once; a sentence on what it does."""
    campaign = made.record.id
    if made.record.status is CampaignStatus.FINISHED:
        await campaign_launch.start(client, db, campaign)
        return f"it is started again; `mainspring train --name {campaign}` brings its workers"
    if made.record.status in campaigns.ENDS:
        return f"they count when it is started again (`mainspring train --name {campaign}`)"
    try:
        await client.get_workflow_handle(campaign_workflow(campaign)).signal("changed")
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return "they count when it is started again"
    return "it runs with them from these steps on"
