"""Fingerprints and stamps of policy versions: what is compared when two campaigns should be equal.

Invariant: written once, together with their version (`policies.put_first_policy`,
`steps.commit_step`). Versions of campaigns that were stored without have none.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from infra.db.database import Database
from infra.db.tables.models import PolicyVersionRow
from mainspring.artifacts.fingerprint import Fingerprint
from mainspring.artifacts.stamp import Stamp
from mainspring.ids import CampaignId


@dataclass(frozen=True, slots=True)
class Recorded:
    """Fingerprint and stamp of one policy version; None: not recorded."""

    version: int
    fingerprint: Fingerprint | None
    stamp: Stamp | None


def recorded(stamp: Stamp | None, fingerprint: Fingerprint | None) -> dict[str, Any]:
    """The columns of a version's row."""
    return {
        "stamp": None if stamp is None else stamp.model_dump(),
        "fingerprint": None if fingerprint is None else fingerprint.model_dump(),
    }


async def of_campaign(db: Database, campaign: CampaignId) -> list[Recorded]:
    """Fingerprints of every version, in order."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(PolicyVersionRow.version, PolicyVersionRow.fingerprint, PolicyVersionRow.stamp)
            .where(PolicyVersionRow.campaign_id == campaign)
            .order_by(PolicyVersionRow.version)
        )
        return [
            Recorded(
                version,
                None if fingerprint is None else Fingerprint.model_validate(fingerprint),
                None if stamp is None else Stamp.model_validate(stamp),
            )
            for version, fingerprint, stamp in rows
        ]


async def of_version(db: Database, campaign: CampaignId, version: int) -> Fingerprint | None:
    """Fingerprint of the version; None where it was not recorded, or there is no such version."""
    async with db.transaction() as connection:
        fingerprint = await connection.scalar(
            select(PolicyVersionRow.fingerprint).where(
                PolicyVersionRow.campaign_id == campaign, PolicyVersionRow.version == version
            )
        )
    return None if fingerprint is None else Fingerprint.model_validate(fingerprint)


async def stamp_of(db: Database, campaign: CampaignId, version: int) -> Stamp | None:
    """Stamp of the version; None where it was not recorded, or there is no such version."""
    async with db.transaction() as connection:
        stamp = await connection.scalar(
            select(PolicyVersionRow.stamp).where(
                PolicyVersionRow.campaign_id == campaign, PolicyVersionRow.version == version
            )
        )
    return None if stamp is None else Stamp.model_validate(stamp)
