"""Packed arrays come back bit for bit, strange text never crashes a write."""

from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from store_records import add_claimed_rollout, begin_campaign, call

from infra.db.database import Database
from infra.db.rollouts import rollouts, turns
from infra.db.tables.columns import (
    FloatArray,
    IntArray,
    Numbers,
    PackedFloats,
    PackedInts,
    PlainText,
)
from mainspring.status import StopReason, Verdict
from mainspring.trajectories.turns import Call, VersionSpan

INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
DIALECT = None  # the types need none


@given(st.lists(INT32).map(tuple))
def test_ints_round_trip(ids: tuple[int, ...]) -> None:
    packed = PackedInts().process_bind_param(ids, DIALECT)
    assert len(packed) == 4 * len(ids)
    assert PackedInts().process_result_value(packed, DIALECT) == ids
    assert IntArray().process_result_value(packed, DIALECT).tobytes() == packed


@given(st.lists(FLOAT32).map(tuple))
def test_floats_round_trip(values: tuple[float, ...]) -> None:
    packed = PackedFloats().process_bind_param(values, DIALECT)
    assert packed == np.array(values, "<f4").tobytes()
    assert PackedFloats().process_result_value(packed, DIALECT) == values
    assert FloatArray().process_result_value(packed, DIALECT).tobytes() == packed


def test_ints_beyond_32_bits_are_refused() -> None:
    with pytest.raises(OverflowError):
        PackedInts().process_bind_param((2**31,), DIALECT)


@given(st.text(st.characters(codec=None), max_size=50))
def test_plain_text_is_storable_and_stable(value: str) -> None:
    stored = PlainText().process_bind_param(value, DIALECT)
    assert "\0" not in stored
    stored.encode("utf-8")
    assert PlainText().process_bind_param(stored, DIALECT) == stored
    if "\0" not in value and not any(0xD800 <= ord(c) <= 0xDFFF for c in value):
        assert stored == value


def test_numbers_without_a_json_form_become_null() -> None:
    given = {"loss": 0.5, "norm": float("inf"), "gap": float("nan"), "none": None}
    assert Numbers().process_bind_param(given, DIALECT) == {
        "loss": 0.5,
        "norm": None,
        "gap": None,
        "none": None,
    }


async def test_generations_round_trip_through_postgres(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    turn = count()

    @settings(
        max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    @given(st.lists(INT32), st.lists(st.tuples(INT32, FLOAT32)), st.text(max_size=20))
    def draw(prompt: list[int], reply: list[tuple[int, float]], spoken: str) -> None:
        drawn.append(
            Call(
                number=next(turn),
                parent=None,
                prompt_start=3,
                prompt_ids=tuple(prompt),
                completion_ids=tuple(id for id, _ in reply),
                logprobs=tuple(logprob for _, logprob in reply),
                spans=(VersionSpan(4, 0, len(reply)),),
                text=spoken.replace("\0", ""),
                finish_reason="stop",
                latency_s=0.1,
            )
        )

    drawn: list[Call] = []
    draw()
    for one in drawn:
        assert await turns.put_call(db, rollout, 0, one) == one
    assert await turns.history(db, rollout, 0) == (drawn, [])


async def test_nul_and_surrogates_from_a_model_or_a_program_are_data(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    strange = "a\0b\ud800c"
    reply = call(0, 0)
    stored = await turns.put_call(
        db,
        rollout,
        0,
        Call(**{n: getattr(reply, n) for n in reply.__slots__} | {"text": strange}),
    )
    assert stored.text == "a\ufffdb\ufffdc"
    assert await turns.put_intent(db, rollout, 0, 0, 0, strange) is None
    await rollouts.put_grade(db, rollout, 0, Verdict.FAULT, strange, strange)
    await rollouts.finish(
        db,
        rollout,
        0,
        stop_reason=StopReason.INFRA_FAULT,
        verdict=Verdict.FAULT,
        reward=None,
        fault=strange,
        num_turns=1,
        phase_s={"grade": float("nan")},
    )
    record = await rollouts.get(db, rollout)
    assert record.fault == stored.text
    assert record.phase_s == {"grade": None}


async def test_a_status_outside_its_words_is_refused_by_postgres(db: Database) -> None:
    from sqlalchemy.exc import IntegrityError

    await begin_campaign(db)
    with pytest.raises(IntegrityError, match="ck_campaigns_status"):
        async with db.transaction() as connection:
            await connection.execute(text("UPDATE campaigns SET status = 'sleeping'"))
