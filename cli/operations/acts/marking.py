"""Labels and the note of a rollout, from its page.

Imported by `offered`.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cli.operations.acts.services import Place
from cli.operations.runs import labelling
from infra.db.database import Database
from infra.db.naming import rollout_named
from infra.db.rollouts import labels
from infra.db.rollouts.labels import MarkChange, Marks
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, RolloutId
from view.actions.protocol import ActRequest, Input, Preview, Say
from view.page_request import url
from view.pages.rollout import RolloutPage

NUM_NAMED = 12


class MarkRollout:
    """Give and take labels, and write the note."""

    name = "label"
    title = "label or note"

    def __init__(self, place: Place) -> None:
        self._place = place

    def offer(self, shown: Any) -> Mapping[str, str] | None:
        return {"of": shown.record.id} if isinstance(shown, RolloutPage) else None

    async def preview(self, asked: ActRequest) -> Preview:
        async def read(db: Database) -> tuple[RolloutId, Marks, Mapping[str, int]]:
            rollout = await rollout_named(db, asked.of)
            known = await labels.names_in(db, CampaignId(rollout.partition("/")[0]))
            async with db.transaction() as connection:
                return rollout, await labels.of_rollout(connection, rollout), known

        rollout, marks, known = await self._place.read(read)
        had = "" if marks.note is None else marks.note.text
        change = _change(asked, had)
        what = ["Labels and notes choose rollouts. Rewards and training do not read them."]
        if marks.labels:
            what.append(f"It has: {', '.join(label.name for label in marks.labels)}.")
        if known:
            most = list(known.items())[:NUM_NAMED]
            used = ", ".join(f"{name} ({num:,})" for name, num in most)
            what.append(f"Labels of this run, with their rollouts: {used}.")
        return Preview(
            what=what,
            command=_command(rollout, change),
            back=url("r", rollout),
            verb="save",
            seen=" ".join([*(f"{label.name}@{label.epoch}" for label in marks.labels), had]),
            inputs=(
                Input("add", "Labels to give, as good", asked.fields.get("add", "")),
                Input("remove", "Labels to take away", asked.fields.get("remove", "")),
                Input("note", "Note", asked.fields.get("note", had), num_lines=4),
            ),
        )

    async def do(self, asked: ActRequest, shown: Preview, by: str, say: Say) -> str:
        async def go(db: Database) -> tuple[list[RolloutId], list[RolloutId], str]:
            rollout = await rollout_named(db, asked.of)
            async with db.transaction() as connection:
                note = (await labels.of_rollout(connection, rollout)).note
            change = _change(asked, "" if note is None else note.text)
            if change is None:
                raise UsageError(
                    "nothing was to be changed", remedy="give a label, or write a note"
                )
            return *await labelling.label(db, [rollout], change, by), change.told()

        [rollout], changed, told = await self._place.read(go)
        return f"{rollout}: {told if changed else 'nothing to change'}"


def _change(asked: ActRequest, had: str) -> MarkChange | None:
    """None: the form asks for nothing. Raises UsageError."""
    add, remove = (_names(asked.fields.get(name, "")) for name in ("add", "remove"))
    written = asked.fields.get("note", had).strip()
    note = None if written == had else written
    if not (add or remove) and note is None:
        return None
    return labelling.checked(add, remove, note)


def _names(text: str) -> Sequence[str]:
    return text.replace(",", " ").split()


def _command(rollout: RolloutId, change: MarkChange | None) -> str:
    words = ["mainspring", "rollout", "label", rollout]
    if change is None:
        return f"{shlex.join(words)} --add LABEL --remove LABEL --note TEXT"
    for option, names in (("--add", change.add), ("--remove", change.remove)):
        words += [word for name in names for word in (option, name)]
    words += [] if change.note is None else ["--note", change.note]
    return shlex.join(words)
