"""What is stored of a rollout that an installed client played while something was killed."""

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select

from infra.db.database import Database
from infra.db.programs import model_requests
from infra.db.rollouts import turns
from infra.db.tables.models import RolloutRow
from infra.db.tables.program_rows import ModelRequestRow
from infra.db.training.batches import load_groups
from mainspring.ids import RolloutId
from mainspring.programs.record import BranchKind, RequestState
from mainspring.status import RolloutPhase, StopReason
from tests.chaos.check_programs import num_trained_amiss
from tests.gateway.scripted_process import STEP


@dataclass(frozen=True, slots=True)
class Cell:
    """One client, one kill."""

    client: str
    killed: str
    at: str
    """Share of its calls, in percent."""
    survived: bool
    how: str
    """waited: its next request is another one; retried: the same life asked the same again;
    replayed: a next life asked from the start."""
    num_before: int
    """Calls that were answered before the kill."""
    num_from_store: int
    """Of those, asked again by the next life and answered from the store."""
    saved_s: float
    """What these took when they were first served, but for those that waited for a kill."""
    away_s: float | None
    """From the kill until it asked again what was cut; None: it waited."""
    seconds: float
    """Of the whole rollout."""
    amiss: list[str]

    def as_line(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a rollout that nothing disturbed."""

    num_calls: int
    num_roots: int
    """Calls of the agent itself that continue no other."""


async def shape_of(db: Database, rollout: RolloutId) -> Shape:
    requests = await stored_requests(db, rollout)
    of_main = {each.number for each in requests if each.kind is BranchKind.MAIN}
    calls, _ = await turns.history(db, rollout, 0)
    roots = [call for call in calls if call.parent is None and call.number in of_main]
    return Shape(len(calls), len(roots))


async def faults_of(db: Database, rollout: RolloutId, usual: Shape | None) -> list[str]:
    """What must not be."""
    amiss: list[str] = []
    async with db.statement() as connection:
        row = (await connection.execute(select(RolloutRow).where(RolloutRow.id == rollout))).one()
    if (row.phase, row.stop_reason, row.reward) != (RolloutPhase.DONE, StopReason.EXITED, 1.0):
        amiss.append(f"ended as {row.stop_reason}, reward {row.reward}: {row.fault or ''}"[:300])
    if row.phase is not RolloutPhase.DONE:
        return amiss
    requests = await stored_requests(db, rollout)
    keys = Counter(each.key for each in requests)
    amiss += [f"a prompt has {n} replies" for n in keys.values() if n > 1]
    calls, _ = await turns.history(db, rollout, row.epoch)
    if usual is not None and (shape := await shape_of(db, rollout)) != usual:
        amiss.append(f"{shape} and not {usual}")
    of_main = {each.number for each in requests if each.kind is BranchKind.MAIN}
    stored = {step for call in calls for step in STEP.findall(call.text)}
    for number, (_, body) in (await model_requests.bodies(db, rollout, row.epoch)).items():
        seen = set(re.findall(STEP, "\n".join(message.text for message in body.messages)))
        if seen - stored:
            amiss.append(f"request {number} tells of replies that are not stored")
    for group in await load_groups(db, [row.group_id]):
        for played in group.rollouts:
            if wrong := num_trained_amiss(played):
                amiss.append(f"{wrong} tokens are trained never or twice")
            if any(number in of_main for number in played.untrained):
                amiss.append("calls of the agent itself are not trained")
    return amiss


async def stored_requests(db: Database, rollout: RolloutId) -> list[Any]:
    row = ModelRequestRow
    statement = (
        select(row.number, row.key, row.kind, row.first_life, row.asked_at, row.answered_at)
        .where(row.rollout_id == rollout, row.state == RequestState.STORED)
        .order_by(row.number)
    )
    async with db.statement() as connection:
        return list((await connection.execute(statement)).all())


async def cell(
    db: Database,
    asks: list[dict[str, Any]],
    rollout: RolloutId,
    turn: int,
    killed_at: float,
    turns: list[int],
    **known: Any,
) -> Cell:
    """`asks`: what gateways noted of requests; `turns`: all at which this rollout was disturbed."""
    known["amiss"] = list(known["amiss"])
    requests = await stored_requests(db, rollout)
    before = [each for each in requests if each.answered_at.timestamp() < killed_at]
    asked = [each for each in asks if each["rollout"] == rollout]
    life = max((each["life"] for each in asked if each["at"] <= killed_at), default=0)
    next_life = {each["key"] for each in asked if each["life"] == life + 1}
    # Requests beside the agent's own, such as one for a title, tell nothing of what was cut.
    later = [each for each in asked if each["at"] > killed_at and each["turn"] is not None]
    first = min(later, key=lambda each: each["at"], default=None)
    how = "waited"
    if first is not None and first["life"] > life:
        how = "replayed"
    elif first is not None and first["turn"] == turn:
        how = "retried"
    replayed = [each for each in before if each.key in next_life] if how == "replayed" else []
    disturbed = {each["key"] for each in asked if each["turn"] in turns}
    undisturbed = [each for each in replayed if each.key not in disturbed]
    back = min((each["at"] for each in later if each["turn"] == turn), default=None)
    return Cell(
        survived=not known["amiss"],
        how=how,
        num_before=len(before),
        num_from_store=len(replayed),
        saved_s=round(sum((e.answered_at - e.asked_at).total_seconds() for e in undisturbed), 1),
        away_s=None if how == "waited" or back is None else round(back - killed_at, 1),
        **known,
    )
