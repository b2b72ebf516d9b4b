"""Labels and notes of rollouts: what `mainspring rollout label` and the viewer do.

Invariant: everything is checked before anything is written, and all of it is written or nothing.
Imported by commands and by the viewer's actions.
"""

from collections.abc import Sequence

from infra.db.database import Database
from infra.db.naming import near_names, rollout_named
from infra.db.rollouts import labels
from infra.db.rollouts.labels import MarkChange
from infra.db.runs import campaigns
from infra.db.runs.campaigns import refuse_incomplete
from infra.db.runs.events import person
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, RolloutId, label_name

MAX_NOTE_CHARS = 4000
MAX_ROLLOUTS = 5000
"""In one command: all of them are written at once."""
NUM_NAMED = 10
"""Labels that a message names."""


def checked(add: Sequence[str], remove: Sequence[str], note: str | None) -> MarkChange:
    """Raises UsageError for what is no change, and for names that a label cannot have."""
    adding, removing = (tuple(dict.fromkeys(map(label_name, names))) for names in (add, remove))
    for name in adding:
        if name in removing:
            raise UsageError(
                f"the label {name} is to be added and removed", remedy="give one of the two"
            )
    if note is not None and len(note) > MAX_NOTE_CHARS:
        raise UsageError(
            f"the note has {len(note):,} characters, and may have {MAX_NOTE_CHARS:,}",
            remedy="shorten it, or put the text elsewhere and its address into the note",
        )
    if not (adding or removing) and note is None:
        raise UsageError(
            "nothing is to be changed", remedy="give --add NAME, --remove NAME or --note TEXT"
        )
    return MarkChange(adding, removing, None if note is None else note.strip())


async def label(
    db: Database, names: Sequence[str], asked: MarkChange, by: str = ""
) -> tuple[list[RolloutId], list[RolloutId]]:
    """The rollouts that are named, and those of which something changed. `by`: who asks; empty: who
    runs this command. Raises UnknownId, UsageError."""
    ids = list(dict.fromkeys([await rollout_named(db, name) for name in names]))
    if len(ids) > MAX_ROLLOUTS:
        raise UsageError(
            f"{len(ids):,} rollouts are named, and {MAX_ROLLOUTS:,} are labelled at once",
            remedy="give them to several commands",
        )
    for campaign in dict.fromkeys(id.partition("/")[0] for id in ids):
        record = await campaigns.get(db, CampaignId(campaign))
        refuse_incomplete(record.id, record.incomplete)
    return ids, await labels.change(db, ids, asked, by or person())


async def refuse_unknown(db: Database, campaign: CampaignId, name: str) -> None:
    """Refuse a label that none of the campaign's rollouts has. Raises UsageError."""
    known = await labels.names_in(db, campaign)
    if name in known:
        return
    near = near_names(name, known) or list(known)[:NUM_NAMED]
    raise UsageError(
        f"campaign {campaign} has no rollout with the label {name!r}",
        remedy=f"its labels: {', '.join(near)}"
        if near
        else "`mainspring rollout label ROLLOUT --add NAME` gives one",
    )
