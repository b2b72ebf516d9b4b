"""The words of ended rollouts, stored for searches.

Invariants: a rollout's words are of its present epoch, written whole in one transaction with the
mark that tells so: a process that is killed leaves the rollout to the next one, and of two
processes each takes another rollout. A run that is being deleted or restored gets none: its removal
never waits for a rollout that is held here. What is stored here can be made again.
"""

import asyncio
import zlib
from collections.abc import Sequence

import structlog
from sqlalchemy import (
    ARRAY,
    Text,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)

from infra.db.database import Database
from infra.db.rollouts import search_texts
from infra.db.rollouts.search_texts import SearchText
from infra.db.tables.columns import plain
from infra.db.tables.models import CampaignRow, RolloutRow
from infra.db.tables.search_rows import SearchPieceRow
from mainspring.ids import RolloutId
from mainspring.status import RolloutPhase
from mainspring.trajectories.search_query import SearchKey, words_of

log = structlog.get_logger()
MARKED_AT_ONCE = 1000
"""Rollouts whose words are declared old by one statement."""
CONFIGURATION = literal_column("'simple'::regconfig")
"""Words as they are: what agents write is code in any language."""
MARKED = (SearchKey.PART, SearchKey.EXIT)
"""Conditions whose values are words of each piece, too."""
IS_UNSEARCHED = text(
    "rollouts.phase = 'done' AND rollouts.searched_epoch IS DISTINCT FROM rollouts.epoch"
)
"""The condition of the index that finds them."""
_NEXT = (
    select(RolloutRow.id, RolloutRow.epoch, RolloutRow.campaign_id, RolloutRow.finished_at)
    .join(CampaignRow, CampaignRow.id == RolloutRow.campaign_id)
    .where(IS_UNSEARCHED, CampaignRow.incomplete.is_(None), RolloutRow.finished_at.is_not(None))
    .order_by(RolloutRow.finished_at.desc())
    .limit(1)
    # The run's row, too: a removal marks it first, and waits for this transaction there.
    .with_for_update(key_share=True, skip_locked=True, of=[RolloutRow, CampaignRow], read=False)
)
_STORE = insert(SearchPieceRow).values(
    words=func.to_tsvector(CONFIGURATION, bindparam("its_words", type_=Text)).op("||")(
        func.array_to_tsvector(bindparam("its_marks", type_=ARRAY(Text)))
    )
)


async def fill_next(db: Database) -> RolloutId | None:
    """Store the words of the rollout that ended last and has none; None where there is none.
    Raises DatabaseError."""
    async with db.transaction() as connection:
        row = (await connection.execute(_NEXT)).one_or_none()
        if row is None:
            return None
        try:
            make = await search_texts.of_rollout(connection, row.id, row.epoch)
            # A long rollout has megabytes: replies of others must not wait meanwhile.
            pieces = await asyncio.to_thread(lambda: [_row(each) for each in make()])
        except (ValueError, zlib.error) as error:
            # It must neither end its worker nor stand before all others.
            log.warning("a rollout cannot be searched", rollout=row.id, reason=str(error))
            pieces = []
        await connection.execute(delete(SearchPieceRow).where(SearchPieceRow.rollout_id == row.id))
        own = {"epoch": row.epoch, "campaign_id": row.campaign_id, "at": row.finished_at}
        if pieces:
            # The last first: a search lists the newest rows first, and turns in their order.
            await connection.execute(_STORE, [each | own for each in reversed(pieces)])
        await connection.execute(
            update(RolloutRow).where(RolloutRow.id == row.id).values(searched_epoch=row.epoch)
        )
    return row.id


async def num_unsearched(db: Database) -> int:
    """Number of ended rollouts that no search finds yet."""
    async with db.statement() as connection:
        counted = select(func.count()).select_from(RolloutRow).where(IS_UNSEARCHED)
        return await connection.scalar(counted) or 0


async def forget(db: Database) -> None:
    """Declare the words of all rollouts old. They are found until new ones replace them."""
    last = ""
    while True:
        async with db.transaction() as connection:
            ids: Sequence[str] = list(
                await connection.scalars(
                    select(RolloutRow.id)
                    .where(RolloutRow.id > last, RolloutRow.phase == RolloutPhase.DONE)
                    .order_by(RolloutRow.id)
                    .limit(MARKED_AT_ONCE)
                )
            )
            if not ids:
                return
            await connection.execute(
                update(RolloutRow)
                .where(RolloutRow.id.between(ids[0], ids[-1]), RolloutRow.searched_epoch >= 0)
                .values(searched_epoch=None)
            )
            last = ids[-1]


def _row(piece: SearchText) -> dict[str, object]:
    return {
        "rollout_id": piece.rollout,
        "part": piece.part,
        "call": piece.call,
        "index": piece.index,
        "returncode": piece.returncode,
        # With a colon, which no word has: the index of words finds them together with words.
        "its_marks": [
            f"{SearchKey.PART}:{piece.part}",
            *([] if piece.returncode is None else [f"{SearchKey.EXIT}:{piece.returncode}"]),
        ],
        "its_words": plain(words_of(piece.text)),
    }
