"""`mainspring bench scale --soak-s`: the same load for a long time, to see what grows.

Rollouts are kept in flight at one number: for each that ends, one is started. Samples of memory,
open files, folders, control groups, speed and bytes are taken on a clock. Invariant: a slope is a
line through the second half of the samples, as caches fill in the first; fewer than MIN_SAMPLES
have no slope.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from cli.bench.bench_scale import Counting, Figures, require_expected
from cli.bench.loaded_stack import Load, LoadedStack, loaded_stack
from mainspring.errors import WorkFailed

SAMPLE_EVERY_S = 30.0
LOOK_S = 0.5
MIN_SAMPLES = 3
"""Fewest samples of the second half: two make a line whatever they are."""
S_PER_HOUR = 3600.0


async def measure_soak(
    number: int,
    soak_s: float,
    load: Load,
    counting: Counting,
    figures: dict[str, Figures],
    sample_every_s: float = SAMPLE_EVERY_S,
) -> None:
    """Fill `figures` with `samples`, their slopes and what ended. Raises WorkFailed when rollouts
    ended otherwise than expected, or none does any more."""
    with counting(f"{number} rollouts at once, seconds") as tell:
        async with loaded_stack(number, load) as stack:
            row: Figures = {
                "num_turns": load.num_turns,
                "turns_per_activity": load.turns_per_activity,
                "reply_s": load.reply_s,
                "soak_s": soak_s,
                "samples": [],
            }
            figures[str(number)] = row
            started = time.monotonic()
            calls_before, sampled_s = 0, 0.0
            num_ended, ended_s = 0, 0.0
            while True:
                ends = await stack.ends()
                elapsed_s = time.monotonic() - started
                if ends.num_ended > num_ended or not stack.ids:
                    num_ended, ended_s = ends.num_ended, elapsed_s
                if elapsed_s - ended_s > load.limit_s:
                    raise WorkFailed(
                        f"no rollout has ended for {load.limit_s:.0f} s: {num_ended} ended before",
                        remedy="give a longer --limit-s, fewer --turns or fewer --rollouts",
                    )
                if missing := number - (len(stack.ids) - ends.num_ended):
                    await stack.start(missing)
                is_due = elapsed_s >= min(sampled_s + sample_every_s, soak_s)
                if is_due or not row["samples"]:
                    calls = await stack.num_calls()
                    spent_s = elapsed_s - sampled_s
                    turns_per_s = (calls - calls_before) / spent_s if row["samples"] else 0.0
                    row["samples"].append(await _sample(stack, elapsed_s, turns_per_s))
                    calls_before, sampled_s = calls, elapsed_s
                tell(min(int(elapsed_s), int(soak_s)), int(soak_s))
                row |= {
                    "num_ended": ends.num_ended,
                    "unexpected_ends": ends.num_ended - ends.num_as_expected,
                }
                if elapsed_s >= soak_s:
                    break
                await asyncio.sleep(LOOK_S)
            row["turns_per_s"] = round(await stack.num_calls() / elapsed_s, 2)
            row["memory_slope_mib_per_hour_of"] = slopes(row["samples"], "memory_mib_of")
            row["open_files_slope_per_hour_of"] = slopes(row["samples"], "open_files_of")
            row["left_slope_per_hour_of"] = slopes(row["samples"], "left_of")
            require_expected(row, await stack.faults())


def slopes(samples: Sequence[dict[str, Any]], figure: str) -> dict[str, float | None]:
    """Growth of a figure in an hour, by its names: least squares over the second half."""
    half = samples[len(samples) // 2 :]
    hours = [sample["at_s"] / S_PER_HOUR for sample in half]
    return {
        name: round(float(np.polyfit(hours, [sample[figure][name] for sample in half], 1)[0]), 1)
        if len(half) >= MIN_SAMPLES
        else None
        for name in samples[0][figure]
    }


async def _sample(stack: LoadedStack, at_s: float, turns_per_s: float) -> dict[str, Any]:
    footprint = stack.footprint
    return {
        "at_s": round(at_s, 1),
        "turns_per_s": round(turns_per_s, 2),
        "memory_mib_of": {name: round(mib, 1) for name, mib in footprint.memory_mib().items()},
        "open_files_of": footprint.open_files(),
        "left_of": footprint.left(),
        "bytes_of": {
            "temporal": footprint.temporal_bytes(),
            "postgres": await stack.database_bytes(),
        },
    }
