"""`mainspring bench scale`: what many rollouts at once take on one machine.

The real workflow, activities, Temporal and Postgres, with real worker processes whose policy and
sandbox do nothing. Each number of rollouts has a stack and workers of its own, so that its memory
and its bytes are its own. Invariants: every rollout's end is checked, so a fault never counts as
fast; every number has a limit of time, after which what was seen is reported as unfinished and no
larger number is tried.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np

from cli.bench.loaded_stack import WORKERS, Load, LoadedStack, loaded_stack
from infra.db.reading import timings
from mainspring.errors import UsageError, WorkFailed
from mainspring.ids import RolloutId, rollout_workflow

Counting = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""A bar with a title, told how many are done and of how many."""
Figures = dict[str, Any]

MAX_ROLLOUTS = 20_000
MIN_LOOK_S, MAX_LOOK_S = 0.1, 2.0
"""Between two looks at the store: a twentieth of the time so far, within these."""
HISTORIES = 10
"""Rollouts whose histories are measured."""
QUARTERS = 4


def read_numbers(text: str) -> list[int]:
    """Numbers of rollouts, ascending. Raises UsageError."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    is_ascending = all(a < b for a, b in pairwise(numbers))
    if not numbers or min(numbers) < 1 or max(numbers) > MAX_ROLLOUTS or not is_ascending:
        raise UsageError(
            f"--rollouts {text!r}: expected numbers from 1 to {MAX_ROLLOUTS}, ascending, with "
            "commas between them",
            remedy="for example --rollouts 50,200,1000",
        )
    return numbers


async def measure(
    numbers: Sequence[int], load: Load, counting: Counting, figures: dict[str, Figures]
) -> None:
    """Fill `figures` by number of rollouts. Raises WorkFailed when a number did not finish, or
    rollouts ended otherwise than expected; its figures are there."""
    for number in numbers:
        with counting(f"{number} rollouts") as tell:
            tell(0, number * load.num_turns)
            async with loaded_stack(number, load) as stack:
                figures[str(number)] = row = await _burst(stack, number, load, tell)
                require_expected(row, await stack.faults())
            row |= _reads(stack)
        if row["num_ended"] < number:
            raise WorkFailed(
                f"{number} rollouts did not finish within {load.limit_s:.0f} s: {row['num_ended']} "
                f"ended, {row['num_calls']} of {number * load.num_turns} turns were played",
                remedy="give a longer --limit-s, fewer --turns or more --turns-per-activity",
            )


def require_expected(row: Figures, faults: str) -> None:
    """Raises WorkFailed when rollouts ended otherwise than at their last turn."""
    if row["unexpected_ends"]:
        raise WorkFailed(
            f"{row['unexpected_ends']} of {row['num_ended']} rollouts did not end at their step "
            f"limit: {faults or 'no fault is recorded'}",
            remedy="measure fewer rollouts at once, or more --turns-per-activity",
        )


async def _burst(
    stack: LoadedStack, number: int, load: Load, tell: Callable[[int, int], None]
) -> Figures:
    """All rollouts at once, until the last one has ended or the limit is reached."""
    footprint = stack.footprint
    bytes_before = await _bytes(stack)
    cpu_before = footprint.cpu_s()
    began, started = datetime.now(UTC), time.monotonic()
    starting = asyncio.create_task(stack.start(number))
    try:
        while True:
            ends = await stack.ends()
            footprint.memory_mib()
            elapsed_s = time.monotonic() - started
            if starting.done():
                starting.result()
            if ends.num_ended == number or elapsed_s > load.limit_s:
                break
            tell(await stack.num_calls(), number * load.num_turns)
            await asyncio.sleep(min(MAX_LOOK_S, max(MIN_LOOK_S, elapsed_s / 20)))
    finally:
        starting.cancel()
        await asyncio.wait([starting])
    cpu_s = {name: used - cpu_before[name] for name, used in footprint.cpu_s().items()}
    is_finished = ends.num_ended == number
    last_end = ends.last_end if is_finished else None
    wall_s = elapsed_s if last_end is None else (last_end - began).total_seconds()
    num_calls = await stack.num_calls()
    grown = {name: size - bytes_before[name] for name, size in (await _bytes(stack)).items()}
    peak_mib = footprint.peak_mib()
    return {
        "num_turns": load.num_turns,
        "turns_per_activity": load.turns_per_activity,
        "reply_s": load.reply_s,
        "num_workers": load.num_workers,
        "num_tokens": load.num_tokens,
        "num_ended": ends.num_ended,
        "unexpected_ends": ends.num_ended - ends.num_as_expected,
        "most_in_flight": await stack.most_in_flight(),
        "num_calls": num_calls,
        "wall_s": round(wall_s, 2),
        "turns_per_s": round(num_calls / wall_s, 2),
        **await _overheads(stack, load),
        "cpu_ms_per_turn": _per(1000 * sum(cpu_s.values()), num_calls),
        "cpu_ms_per_turn_of": {name: _per(1000 * s, num_calls) for name, s in cpu_s.items()},
        "workers_peak_mib": round(sum(peak_mib[name] for name in WORKERS), 1),
        "peak_mib_of": {name: round(mib, 1) for name, mib in peak_mib.items()},
        "bytes_of": grown,
        "bytes_per_rollout_of": {name: size // number for name, size in grown.items()},
        **(await _histories(stack, load.num_turns) if is_finished else {}),
    }


def _reads(stack: LoadedStack) -> Figures:
    """How often the rollout workers knew the history of a reply."""
    assert stack.reads is not None, "the workers have ended"
    number = stack.reads.num_known + stack.reads.num_whole
    rate = round(stack.reads.num_known / number, 4) if number else None
    return {"num_histories_read": number, "histories_known": rate}


async def _overheads(stack: LoadedStack, load: Load) -> Figures:
    """From one stored reply to the next of the same rollout: a whole turn, all overhead but for the
    reply. Also by quarter of the rollout, so that a turn that costs more the later it comes is
    seen."""
    async with stack.db.transaction() as connection:
        between = await timings.between_replies(connection, stack.ids)
    if not between:
        return {"overhead_p50_ms": None, "overhead_p99_ms": None, "overhead_p50_ms_by_quarter": []}
    numbers, seconds = (np.array(column) for column in zip(*between, strict=True))
    seconds = seconds - load.reply_s
    quarter = numbers * QUARTERS // load.num_turns
    parts = [seconds[quarter == index] for index in range(QUARTERS)]
    return {
        "overhead_p50_ms": round(1000 * float(np.percentile(seconds, 50)), 2),
        "overhead_p99_ms": round(1000 * float(np.percentile(seconds, 99)), 2),
        "overhead_p50_ms_by_quarter": [
            round(1000 * float(np.median(part)), 2) for part in parts if part.size
        ],
    }


async def _histories(stack: LoadedStack, num_turns: int) -> Figures:
    """Histories of a sample of the rollouts."""
    sample = stack.ids[:: max(1, len(stack.ids) // HISTORIES)][:HISTORIES]
    sizes = [await _history(stack, rollout) for rollout in sample]
    num_events, num_bytes = (sum(part) for part in zip(*sizes, strict=True)) if sizes else (0, 0)
    turns = num_turns * len(sizes)
    return {
        "history_events_per_turn": _per(num_events, turns),
        "history_bytes_per_turn": _per(num_bytes, turns),
    }


async def _history(stack: LoadedStack, rollout: RolloutId) -> tuple[int, int]:
    described = await stack.client.get_workflow_handle(rollout_workflow(rollout)).describe()
    info = described.raw_description.workflow_execution_info
    return info.history_length, info.history_size_bytes


async def _bytes(stack: LoadedStack) -> dict[str, int]:
    return {
        "temporal": stack.footprint.temporal_bytes(),
        "postgres": await stack.database_bytes(),
    }


def _per(amount: float, number: int) -> float | None:
    return round(amount / number, 2) if number else None
