"""Chat JSONL for supervised fine-tuning: a line for each branch of a rollout, up to its last reply.

The messages are the text that the policy saw and wrote; the loss belongs on the assistant's.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path

from mainspring.trajectories.turns import Call
from reports.export.trajectory import Trajectory
from reports.whole_file import whole_file


async def write_sft(trajectories: AsyncIterator[Trajectory], out: Path) -> int:
    """How many lines."""
    written = 0
    with whole_file(out) as partial, partial.open("w", encoding="utf-8") as file:
        async for trajectory in trajectories:
            for branch in trajectory.branches:
                file.write(_line(trajectory, branch))
                written += 1
    return written


def _line(trajectory: Trajectory, branch: tuple[Call, ...]) -> str:
    line = {
        "messages": trajectory.messages_of(branch),
        **trajectory.outcome(),
        "model": trajectory.model,
    }
    return json.dumps(line, ensure_ascii=False) + "\n"
