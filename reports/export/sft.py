"""Chat JSONL for supervised fine-tuning: a line a rollout, `messages` up to the last reply.

The messages are the text that the policy saw and wrote; the loss belongs on the assistant's.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path

from reports.export.trajectory import Trajectory
from reports.export.whole_file import whole_file


async def write_sft(trajectories: AsyncIterator[Trajectory], out: Path) -> int:
    """How many lines."""
    written = 0
    with whole_file(out) as partial, partial.open("w", encoding="utf-8") as file:
        async for trajectory in trajectories:
            file.write(_line(trajectory))
            written += 1
    return written


def _line(trajectory: Trajectory) -> str:
    line = {"messages": trajectory.messages, **trajectory.outcome(), "model": trajectory.model}
    return json.dumps(line, ensure_ascii=False) + "\n"
