"""Changing fields of a stored campaign, with the preview that `mainspring campaign set` shows.

Imported by `offered`.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cli.operations.acts.services import Place
from cli.operations.machine.services import Services
from cli.operations.runs import campaign_changes
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.runs.changes import PendingChanges
from mainspring.config.any_run import training
from mainspring.config.files.layers import assignments
from mainspring.errors import UsageError
from mainspring.status import CampaignKind, CampaignStatus
from view.actions.protocol import ActRequest, Input, Preview, Say
from view.page_request import url
from view.pages.campaign import CampaignPage
from view.pages.config import ConfigPage

MAX_DIGITS = 9


class SetFields:
    """Change fields of a training campaign."""

    name = "set"
    title = "change fields"

    def __init__(self, place: Place) -> None:
        self._place = place

    def offer(self, shown: Any) -> Mapping[str, str] | None:
        if isinstance(shown, CampaignPage) and shown.kind is CampaignKind.TRAIN:
            return {"of": shown.id}
        if isinstance(shown, ConfigPage) and shown.kind is CampaignKind.TRAIN:
            return {"of": shown.campaign}
        return None

    async def preview(self, asked: ActRequest) -> Preview:
        texts, from_step = _texts(asked), _from_step(asked)
        step = asked.fields.get("from_step", "")
        inputs = (
            Input("fields", "FIELD=VALUE, one a line", "\n".join(texts), num_lines=4),
            Input("from_step", "First step that they count for (empty: the earliest)", step),
        )

        async def read(db: Database) -> tuple[str, PendingChanges | None]:
            record = await campaign_named(db, asked.of)
            training(record.config)
            if not texts:
                return record.id, None
            values = assignments(texts)
            return record.id, await campaign_changes.asked_for(db, asked.of, values, from_step)

        campaign, pending = await self._place.read(read)
        words = [*texts] or ["FIELD=VALUE"]
        words += [] if from_step is None else ["--from-step", str(from_step)]
        lines = [] if pending is None else [change.line for change in pending.changes]
        if pending is None:
            what = [
                "Changes count for the steps that are not planned yet. docs/campaign.md tells "
                "which fields can change."
            ]
        elif not lines:
            what = ["The campaign has these values already: there is nothing to change."]
        else:
            what = lines
            if pending.record.status is CampaignStatus.FINISHED:
                what = [*lines, "The campaign has finished, and is started again for more steps."]
        return Preview(
            what=what,
            command=f"mainspring campaign set {shlex.join([campaign, *words])}",
            back=url("c", campaign),
            seen="; ".join(lines),
            inputs=inputs,
            is_asking=not lines,
        )

    async def do(self, asked: ActRequest, shown: Preview, by: str, say: Say) -> str:
        def agree(pending: PendingChanges) -> None:
            if "; ".join(change.line for change in pending.changes) != shown.seen:
                raise UsageError(
                    "the campaign has moved on, and the changes would count otherwise: nothing was "
                    "changed",
                    remedy="look at them again",
                )

        async def go(services: Services) -> campaign_changes.Changed:
            return await campaign_changes.change(
                services.client,
                services.db,
                asked.of,
                assignments(_texts(asked)),
                agree,
                from_step=_from_step(asked),
                by=by,
            )

        done = await self._place.act(go, say)
        number = f"{len(done.changes)} change{'s' * (len(done.changes) != 1)}; "
        return f"campaign {done.campaign}: {number if done.changes else ''}{done.note}"


def _texts(asked: ActRequest) -> Sequence[str]:
    lines = asked.fields.get("fields", "").splitlines()
    return [line.strip() for line in lines if line.strip()]


def _from_step(asked: ActRequest) -> int | None:
    text = asked.fields.get("from_step", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS and int(text)):
        raise UsageError(f"{text!r} is no number of a step", remedy="give 1, 2, 3 ...")
    return int(text)
