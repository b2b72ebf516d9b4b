"""The key with which agents outside take sessions of a run: made and shown once, or revoked."""

from pathlib import Path

from cli.operations.checks.task_checks import as_played
from infra import gateway_addresses
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.programs import campaign_keys
from mainspring.config.run import RunConfig
from mainspring.config.settings import load_settings
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.programs.profiles.choice import is_remote


async def make(db: Database, name: str) -> tuple[CampaignId, str]:
    """Raises UsageError when it has one, or offers no sessions."""
    record = await campaign_named(db, name)
    config = record.config
    played = await as_played(db, config) if isinstance(config, RunConfig) else None
    if played is None or not any(map(is_remote, played.agent_sections.values())):
        raise UsageError(
            f"{record.id} offers no sessions: no agent of it runs elsewhere",
            remedy='set agent.kind = "remote" in a new run',
        )
    key = await campaign_keys.make(db, record.id)
    if key is None:
        made_at = await campaign_keys.made_at(db, record.id)
        since = "" if made_at is None else f", made at {made_at:%Y-%m-%d %H:%M} UTC"
        raise UsageError(
            f"{record.id} has a key{since}; a key is shown once",
            remedy=f"run `mainspring campaign key {record.id} --revoke`, then again for a new one",
        )
    return record.id, key


async def revoke(db: Database, name: str) -> CampaignId:
    """Raises UsageError when it has none."""
    record = await campaign_named(db, name)
    if not await campaign_keys.revoke(db, record.id):
        raise UsageError(
            f"{record.id} has no key to revoke",
            remedy=f"run `mainspring campaign key {record.id}` to make one",
        )
    return record.id


def next_step(home: Path | None) -> str:
    """Where agents show the key."""
    addresses = gateway_addresses.found(load_settings(home))
    at = ", ".join(addresses) or "none is up: start `mainspring worker gateway --port 8400`"
    return f"give the key to your agents: POST /sessions at a gateway ({at})"
