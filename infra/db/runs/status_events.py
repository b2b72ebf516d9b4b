"""The event of a campaign's new status, in the transaction that gives it.

Invariant: a status that was given before is no event. Imported by what writes the rows.
"""

from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.event_writes import Event, write
from mainspring.status import CampaignStatus
from mainspring.status.event import EventKind

_ENDED = (CampaignStatus.FINISHED, CampaignStatus.CANCELLED, CampaignStatus.FAILED)


async def tell_status(
    connection: AsyncConnection,
    campaign: str,
    before: CampaignStatus | None,
    after: CampaignStatus,
    error: str | None = None,
    by: str = "",
) -> None:
    """`by`: the person who asked for it; empty: this process wrote it."""
    if before is after:
        return
    sentence = f"{campaign} {_words(before, after)}"
    data = {"before": None if before is None else before.value, "after": after.value}
    await write(
        connection,
        Event(
            EventKind.CAMPAIGN_STATUS,
            campaign,
            f"{sentence}: {error}" if error else sentence,
            campaign,
            by,
            data,
        ),
    )


def _words(before: CampaignStatus | None, after: CampaignStatus) -> str:
    match after:
        case CampaignStatus.RUNNING if before is CampaignStatus.PAUSED:
            return "was resumed"
        case CampaignStatus.RUNNING if before is CampaignStatus.WARMING_UP:
            return "has its first policy and runs"
        case CampaignStatus.RUNNING | CampaignStatus.WARMING_UP if before in _ENDED:
            return "was started again"
        case CampaignStatus.RUNNING | CampaignStatus.WARMING_UP:
            return "started"
        case CampaignStatus.PAUSED:
            return "was paused"
        case CampaignStatus.CANCELLED:
            return "was cancelled"
        case CampaignStatus.CREATED:
            return "can be started again"
        case _:
            return after.value
