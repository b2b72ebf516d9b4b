"""One parquet file, one row for each branch of a rollout: text, tokens as served, rewards.

The token columns line up: position t of each describes token t, as in `samples.Sample`.
They are null where replies came as text only. Imports pyarrow when used.
"""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from mainspring.errors import UsageError
from mainspring.trajectories.samples import Sample
from mainspring.trajectories.turns import Call
from reports.export.trajectory import Trajectory
from reports.whole_file import whole_file

ROWS_AT_ONCE = 64
"""Held in memory before they are written as one row group."""


def require_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UsageError(
            "parquet needs pyarrow, which is not installed",
            remedy="pip install 'mainspring[swe]', or choose another format",
        ) from None


async def write_parquet(trajectories: AsyncIterator[Trajectory], out: Path) -> int:
    """How many rollouts."""
    require_pyarrow()
    from pyarrow.parquet import ParquetWriter

    written, rows = 0, []
    with whole_file(out) as partial, ParquetWriter(partial, _schema()) as writer:
        async for trajectory in trajectories:
            rows += _rows(trajectory)
            written += 1
            if len(rows) >= ROWS_AT_ONCE:
                writer.write_table(_table(rows))
                rows.clear()
        writer.write_table(_table(rows))
    return written


def _table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow

    return pyarrow.Table.from_pylist(rows, schema=_schema())


def _rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """A row for each branch."""
    samples = trajectory.samples or [None] * len(trajectory.branches)
    for branch, sample in zip(trajectory.branches, samples, strict=True):
        yield _row(trajectory, branch, sample)


def _row(trajectory: Trajectory, branch: tuple[Call, ...], sample: Sample | None) -> dict[str, Any]:
    parts = trajectory.rollout.reward_parts
    return {
        **trajectory.outcome(),
        "branch": branch[-1].number if branch else None,
        "reward_parts": None if parts is None else json.dumps(parts),
        "model": trajectory.model,
        "split": trajectory.attempt.group.split,
        "policy_version": trajectory.attempt.group.policy_version,
        "temperature": trajectory.rollout.temperature,
        "messages": trajectory.messages_of(branch),
        "patch": trajectory.patch.decode(errors="replace"),
        "token_ids": None if sample is None else sample.token_ids,
        "action_mask": None if sample is None else sample.action_mask,
        "logprobs": None if sample is None else sample.logprobs,
        "versions": None if sample is None else sample.versions,
    }


def _schema() -> Any:
    import pyarrow as pa

    text, whole = pa.string(), pa.int32()
    return pa.schema(
        [
            *((name, text) for name in ("rollout", "campaign", "instance_id")),
            *((name, whole) for name in ("group", "index", "sample")),
            *((name, text) for name in ("stop_reason", "verdict")),
            *((name, pa.bool_()) for name in ("resolved", "masked")),
            ("error", text),
            ("reward", pa.float64()),
            ("reward_parts", text),  # JSON: each campaign has its own
            ("suspicions", pa.list_(text)),
            ("n_steps", whole),
            ("branch", whole),
            *((name, text) for name in ("model", "split")),
            ("policy_version", whole),
            ("temperature", pa.float64()),
            ("messages", pa.list_(pa.struct([("role", text), ("content", text)]))),
            ("patch", text),
            ("token_ids", pa.list_(whole)),
            ("action_mask", pa.list_(pa.bool_())),
            ("logprobs", pa.list_(pa.float32())),
            ("versions", pa.list_(whole)),
        ]
    )
