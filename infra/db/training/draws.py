"""Draws of a reproducible campaign: which of them are stored as groups, and how each one stands.

Invariant: what is read decides alone, so two that read the same store start the same groups. Used
by `standing` and `steps`; the rules are those of `algorithms.schedule`.
"""

from sqlalchemy import ColumnElement, case, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import GroupRow, StepGroupRow
from mainspring.algorithms.schedule import Batches, Drawn
from mainspring.ids import CampaignId, GroupId
from mainspring.status import GroupKind, GroupStatus


async def of_steps_after(
    connection: AsyncConnection, campaign: CampaignId, batches: Batches, version: int
) -> list[Drawn]:
    """Groups of the steps after policy version `version`, in the order of their admission."""
    rows = await connection.execute(
        select(GroupRow.draw, GroupRow.status, GroupRow.note.is_not(None))
        .where(
            GroupRow.campaign_id == campaign,
            GroupRow.kind == GroupKind.TRAIN,
            place_of(batches) >= version * batches.groups_per_step,
        )
        .order_by(GroupRow.index)
    )
    return [Drawn(draw, status, discarded) for draw, status, discarded in rows]


async def ready_for(
    connection: AsyncConnection, campaign: CampaignId, batches: Batches, step: int
) -> list[GroupId]:
    """One ready group a place, in the order of the places; short when a place has none."""
    place, places = place_of(batches), batches.places(step)
    drawn_groups = select(StepGroupRow.group_id).where(StepGroupRow.campaign_id == campaign)
    ids = await connection.scalars(
        select(GroupRow.id)
        .distinct(place)
        .where(
            GroupRow.campaign_id == campaign,
            GroupRow.kind == GroupKind.TRAIN,
            GroupRow.status == GroupStatus.READY,
            GroupRow.id.not_in(drawn_groups),
            place >= places.start,
            place < places.stop,
        )
        .order_by(place, GroupRow.index)
    )
    return [GroupId(id) for id in ids]


def place_of(batches: Batches) -> ColumnElement[int]:
    """The place of a group's draw, as `Batches.place_of`."""
    return case(
        *(
            (
                GroupRow.draw >= part.first_draw,
                part.first_place + (GroupRow.draw - part.first_draw) % part.num_places,
            )
            for part in reversed([*batches.parts()])
        )
    )
