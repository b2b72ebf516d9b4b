"""The texts of rollouts that are searched, piece by piece, from what is stored of their play.

Invariant: the words that a piece was stored with, and the excerpt that a search shows of it, come
from the same text. Nothing here is written. Imported by `search_pieces` and `reading`.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, LargeBinary, case, cast, func, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import CallRow, ExecutionRow, RolloutRow
from infra.db.tables.program_rows import ModelRequestRow
from mainspring.ids import RolloutId
from mainspring.programs.request import ModelRequest, Role
from mainspring.status import ExecutionState
from mainspring.trajectories.search_query import SearchPart

END_BYTES = 20_000
"""Beginning and end of a longer text that are searched."""
Place = tuple[RolloutId, int, int]
"""Rollout, epoch and number of a call."""
Where = Callable[[Any, Any, Any], ColumnElement[bool]]
"""A condition on the columns of a rollout's id, an epoch and a call's number."""
_OUTPUT = ExecutionRow.output
_OUTPUT_ENDS = case(
    (
        func.octet_length(_OUTPUT) > 2 * END_BYTES,
        func.substr(_OUTPUT, 1, END_BYTES)
        .op("||")(cast(literal(b"\n"), LargeBinary))
        .op("||")(func.substr(_OUTPUT, func.octet_length(_OUTPUT) - END_BYTES + 1)),
    ),
    else_=_OUTPUT,
)


@dataclass(frozen=True, slots=True)
class SearchText:
    rollout: RolloutId
    part: SearchPart
    text: str
    call: int | None = None
    """None: of the rollout as a whole."""
    index: int | None = None
    """Which command of the call."""
    returncode: int | None = None

    @property
    def key(self) -> tuple[RolloutId, SearchPart, int | None, int | None]:
        return self.rollout, self.part, self.call, self.index


async def of_rollout(
    connection: AsyncConnection, rollout: RolloutId, epoch: int
) -> Callable[[], list[SearchText]]:
    """All texts of an epoch. What is returned makes them: for a long rollout that takes as long as
    a thread is worth."""

    def of_epoch(rollout_id: Any, its_epoch: Any, number: Any) -> ColumnElement[bool]:
        return (rollout_id == rollout) & (its_epoch == epoch)

    rows = await _of_calls(connection, of_epoch)
    whole = await _of_rollouts(connection, [rollout])
    return lambda: [*_texts(*rows), *whole]


async def at_places(
    connection: AsyncConnection, places: Sequence[Place], rollouts: Sequence[RolloutId]
) -> list[SearchText]:
    """Texts of these calls, and the patches and tests of `rollouts`."""

    def is_one(rollout_id: Any, epoch: Any, number: Any) -> ColumnElement[bool]:
        return tuple_(rollout_id, epoch, number).in_(places)

    texts = _texts(*await _of_calls(connection, is_one)) if places else []
    return texts + (await _of_rollouts(connection, rollouts) if rollouts else [])


async def _of_calls(connection: AsyncConnection, where: Where) -> tuple[Any, Any, Any]:
    """Rows of calls, of commands that have run, and of programs' requests."""
    calls = await connection.execute(
        select(CallRow.rollout_id, CallRow.number, CallRow.text, CallRow.parts)
        .where(where(CallRow.rollout_id, CallRow.epoch, CallRow.number))
        .order_by(CallRow.number)
    )
    row = ExecutionRow
    ran = await connection.execute(
        select(row.rollout_id, row.call, row.index, row.command, row.returncode, _OUTPUT_ENDS)
        .where(where(row.rollout_id, row.epoch, row.call), row.state == ExecutionState.DONE)
        .order_by(row.call, row.index)
    )
    asked = ModelRequestRow
    requests = await connection.execute(
        select(asked.rollout_id, asked.number, asked.body)
        .where(where(asked.rollout_id, asked.epoch, asked.number))
        .order_by(asked.number)
    )
    return calls.all(), ran.all(), requests.all()


async def _of_rollouts(
    connection: AsyncConnection, rollouts: Sequence[RolloutId]
) -> list[SearchText]:
    rows = await connection.execute(
        select(
            RolloutRow.id, RolloutRow.patch, RolloutRow.grade_output, RolloutRow.grade_report
        ).where(RolloutRow.id.in_(rollouts))
    )
    texts: list[SearchText] = []
    for rollout, patch, output, report in rows:
        if patch:
            texts.append(SearchText(rollout, SearchPart.PATCH, _ends(_decoded(patch))))
        failed = [
            str(test)
            for name in ("fail_to_pass_failed", "pass_to_pass_failed")
            for test in (report or {}).get(name) or ()
        ]
        if output or failed:
            told = "\n".join([*failed, output or ""])
            texts.append(SearchText(rollout, SearchPart.TESTS, _ends(told)))
    return texts


def _texts(calls: Any, ran: Any, requests: Any) -> list[SearchText]:
    of_programs = {(rollout, number) for rollout, number, _ in requests}
    texts: list[SearchText] = []
    for rollout, number, reply, parts in calls:
        reasoning = parts.reasoning if parts and parts.reasoning not in reply else ""
        said = _ends(f"{reasoning}\n{reply}" if reasoning else reply)
        texts.append(SearchText(rollout, SearchPart.THOUGHT, said, number))
        if parts and (rollout, number) in of_programs:
            texts += [
                SearchText(
                    rollout,
                    SearchPart.COMMAND,
                    _ends(f"{call.name} {call.arguments}"),
                    number,
                    index,
                )
                for index, call in enumerate(parts.tool_calls)
            ]
    for rollout, number, index, command, returncode, output in ran:
        at = (number, index, returncode)
        texts.append(SearchText(rollout, SearchPart.COMMAND, _ends(command), *at))
        texts.append(SearchText(rollout, SearchPart.OUTPUT, _decoded(output or b""), *at))
    for rollout, number, body in requests:
        texts.append(SearchText(rollout, SearchPart.OUTPUT, _ends(_added(body)), number))
    return [each for each in texts if each.text.strip()]


def _added(body: bytes) -> str:
    """Text that a program's request adds to the conversation: all before its last reply is in the
    requests before it."""
    messages = ModelRequest.model_validate_json(zlib.decompress(body)).messages
    last = max((n for n, each in enumerate(messages) if each.role is Role.ASSISTANT), default=-1)
    added = [each.text for each in messages[last + 1 :] if each.role is not Role.SYSTEM]
    return "\n".join(added)


def _decoded(data: bytes) -> str:
    return data.decode(errors="replace")


def _ends(text: str) -> str:
    if len(text) <= 2 * END_BYTES:
        return text
    return f"{text[:END_BYTES]}\n{text[-END_BYTES:]}"
