"""Retrying a rollout from its page, and all that a list's filter finds.

Imported by `offered`.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cli.operations.acts.services import Place, counted
from cli.operations.machine.services import Services
from cli.operations.runs import campaign_control, retrying
from cli.operations.runs.retrying import Retried, RetryPlan
from cli.operations.runs.stored_run import resuming
from infra.db.database import Database
from infra.db.naming import campaign_named, rollout_named
from infra.db.reading import rollout_search
from infra.db.reading.rollout_search import RolloutQuery
from mainspring.errors import UsageError
from mainspring.ids import RolloutId
from mainspring.status import RolloutPhase
from mainspring.trajectories.rollout_filter import parse
from view.actions.protocol import ActRequest, Preview, Say
from view.page_request import url
from view.pages.rollout import RolloutPage
from view.pages.rollouts import RolloutsPage

MANY = 100
"""More are retried only when their number is typed."""
_OPTIONS = {"failed": "--failed", "masked": "--masked"}
"""States that have an option of their own."""
_OPS = {"fault": "contains"}
"""A list groups faults by their beginning."""
_BARE = re.compile(r"[A-Za-z0-9_./:-]+")
_FIELDS = ("verdict", "stop", "version", "split", "step", "fault", "task", "group")


class RetryRollout:
    """Retry a rollout."""

    name = title = "retry"

    def __init__(self, place: Place) -> None:
        self._place = place

    def offer(self, shown: Any) -> Mapping[str, str] | None:
        if not isinstance(shown, RolloutPage) or shown.step is not None:
            return None  # a rollout that a step took is final
        record = shown.record
        has_begun = record.phase is RolloutPhase.DONE or record.run_id is not None
        return {"of": record.id} if has_begun else None

    async def preview(self, asked: ActRequest) -> Preview:
        async def read(db: Database) -> RetryPlan:
            return await retrying.plan(db, [await rollout_named(db, asked.of)])

        planned = await self._place.read(read)
        planned.refuse_final(skip=False)
        _refuse_nothing(planned)
        [record] = planned.records
        ended = "" if record.phase is RolloutPhase.DONE else " It is being played now."
        return Preview(
            what=[
                f"The rollout begins again from its first turn; the new result replaces attempt "
                f"{record.epoch + 1}.{ended}",
                *_started_again(planned),
            ],
            command=f"mainspring rollout retry {shlex.quote(record.id)}",
            back=url("r", record.id),
            seen=f"{record.epoch} {record.run_id} {record.phase is RolloutPhase.DONE}",
        )

    async def do(self, asked: ActRequest, shown: Preview, by: str, say: Say) -> str:
        async def go(services: Services) -> str:
            rollout = await rollout_named(services.db, asked.of)
            done = await retrying.retry(services.client, services.db, [rollout], by=by)
            return await _told(done, services)

        return await self._place.act(go, say)


class RetryListed:
    """Retry all rollouts that a list shows, on this page of it and on others."""

    name = "retry-all"
    title = "retry all of these"

    def __init__(self, place: Place) -> None:
        self._place = place

    def offer(self, shown: Any) -> Mapping[str, str] | None:
        if not isinstance(shown, RolloutsPage) or not (shown.chosen and shown.num_matching):
            return None
        return {"of": shown.campaign, **shown.chosen} if _words(shown.chosen) else None

    async def preview(self, asked: ActRequest) -> Preview:
        words = _words(asked.fields)
        if not words:
            raise UsageError(
                "`mainspring rollout retry` has no such filter",
                remedy="choose a filter of the list",
            )

        async def read(db: Database) -> RetryPlan:
            return await retrying.plan(db, await _chosen(db, asked))

        planned = await self._place.read(read)
        if not planned.records:
            raise UsageError("no rollout matches", remedy="look at the list again")
        planned.refuse_final(skip=True)
        _refuse_nothing(planned)
        number = planned.num_retried
        what = [f"Retries {counted(number, 'rollout')}: each begins again from its first turn."]
        if planned.final:
            final = len(planned.final)
            stay = "is final and stays as it is" if final == 1 else "are final and stay as they are"
            what.append(f"{final:,} {stay}: the training group is closed.")
        if planned.waiting:
            what.append(f"Rollouts that have not begun ({len(planned.waiting):,}) stay so.")
        return Preview(
            what=[*what, *_started_again(planned)],
            command=shlex.join(["mainspring", "rollout", "retry", "--campaign", asked.of, *words]),
            back=url("c", asked.of, "rollouts", **dict(asked.fields)),
            seen=str(number),
            confirm=str(number) if number > MANY else "",
        )

    async def do(self, asked: ActRequest, shown: Preview, by: str, say: Say) -> str:
        async def go(services: Services) -> str:
            chosen = await _chosen(services.db, asked)
            say(f"rollouts that are looked at: {len(chosen):,}")
            done = await retrying.retry(
                services.client, services.db, chosen, skip_final=True, by=by
            )
            return await _told(done, services)

        return await self._place.act(go, say)


def _words(chosen: Mapping[str, str]) -> list[str]:
    """The filter as options of the command; none where that has no such filter."""
    options: list[str] = []
    conditions: list[str] = []
    for name, value in chosen.items():
        if name == "label":
            options += ["--label", value]
        elif name == "state" and value in _OPTIONS:
            options.append(_OPTIONS[value])
        elif name in _FIELDS and (quote := _quote(value)):
            conditions.append(f"{name} {_OPS.get(name, '=')} {quote}")
        else:
            return []
    return [*options, *(["--where", " and ".join(conditions)] if conditions else [])]


def _quote(value: str) -> str:
    """Empty where no quotes hold it."""
    if _BARE.fullmatch(value):
        return value
    if "'" not in value:
        return f"'{value}'"
    return f'"{value}"' if '"' not in value else ""


async def _chosen(db: Database, asked: ActRequest) -> Sequence[RolloutId]:
    """As the command chooses them."""
    words = _words(asked.fields)
    query = RolloutQuery(
        failed="--failed" in words,
        masked="--masked" in words,
        conditions=tuple(parse(words[-1])) if "--where" in words else (),
        label=asked.fields.get("label"),
    )
    campaign = (await campaign_named(db, asked.of)).id
    rows, _ = await rollout_search.find(db, campaign, query)
    return [row.id for row in rows]


def _refuse_nothing(planned: RetryPlan) -> None:
    if not planned.num_retried:
        raise UsageError(
            "what was chosen has not begun: nothing to retry",
            remedy="a worker begins them when it has room",
        )


def _started_again(planned: RetryPlan) -> list[str]:
    return [
        f"Run {campaign} has ended and is started again for {counted(len(ids), 'rollout')}."
        for campaign, ids in planned.of_ended.items()
    ]


async def _told(done: Retried, services: Services) -> str:
    parts = [f"{counted(len(done.reset) + len(done.returned), 'rollout')} retried"]
    if done.waiting:
        parts.append(f"{len(done.waiting):,} had not begun")
    if done.final:
        parts.append(f"{len(done.final):,} final, skipped")
    for run in done.restarted:
        again = resuming(done.kinds[run], run)
        parts.append(
            f"run {run} is started again; without workers of your own, `{again}` starts them"
        )
    if done.reset and (unserved := await campaign_control.unserved(services.client, services.db)):
        parts.append(unserved)
    return "; ".join(parts)
