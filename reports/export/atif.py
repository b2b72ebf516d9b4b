"""ATIF, Harbor's Agent Trajectory Interchange Format (its RFC 0001): one JSON file a rollout.

A reply's command is a call of the tool `bash`, and what it printed is the observation of the same
step. Tokens and log-probs are given as served; a step's prompt holds only the tokens that are new
in it (as `extra`), because everything before stands in the steps before.
"""

import json
from pathlib import Path
from typing import Any

from mainspring import __version__
from mainspring.agents.program import asked_by
from mainspring.agents.protocol import FormatError
from mainspring.trajectories.costs import num_completion_tokens, num_prompt_tokens
from mainspring.trajectories.turns import Call
from reports.export.trajectory import Trajectory
from reports.whole_file import write_whole

SCHEMA_VERSION = "ATIF-v1.4"
"""The oldest with every field used here, so that readers of any later one take it too."""


def write_atif(trajectory: Trajectory, directory: Path) -> Path:
    path = directory / f"{trajectory.attempt.name}.json"
    write_whole(path, json.dumps(to_atif(trajectory), indent=1, ensure_ascii=False) + "\n")
    return path


def to_atif(trajectory: Trajectory) -> dict[str, Any]:
    """Fields that would be null are omitted, as the format's optional fields are."""
    steps = [
        {"source": message["role"], "message": message["content"]}
        for message in trajectory.messages[:2]
    ]
    steps += [_step(trajectory, reply) for reply in trajectory.replies]
    report = trajectory.report
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": trajectory.rollout.id,
        "agent": {
            "name": "mainspring",
            "version": __version__,
            "model_name": trajectory.model,
            "extra": {"temperature": trajectory.rollout.temperature},
        },
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": {
            "total_prompt_tokens": trajectory.num_prompt_tokens,
            "total_completion_tokens": trajectory.num_completion_tokens,
            "total_steps": len(steps),
        },
        "extra": {
            **trajectory.outcome(),
            "patch": trajectory.patch.decode(errors="replace"),
            "grade_report": None if report is None else report.model_dump(mode="json"),
        },
    }


def _step(trajectory: Trajectory, reply: Call) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "prompt_tokens": num_prompt_tokens(reply),
        "completion_tokens": num_completion_tokens(reply),
    }
    if reply.completion_ids:
        metrics |= {
            "completion_token_ids": reply.completion_ids,
            "logprobs": reply.logprobs,
            "extra": {
                "new_prompt_token_ids": reply.prompt_ids,
                "policy_versions": [[s.version, s.start, s.end] for s in reply.spans],
            },
        }
    step: dict[str, Any] = {"source": "agent", "message": reply.text, "metrics": metrics}
    if reply.is_summary:
        return step
    parsed = asked_by(trajectory.agent, reply.text, reply.parts)
    if isinstance(parsed, FormatError):
        text = trajectory.told_after(reply)
        step["observation"] = {"results": [{"content": text}]}
        return step
    step["tool_calls"] = [
        {
            "tool_call_id": _tool_call(reply, index),
            "function_name": "bash",
            "arguments": {"command": command.command},
        }
        for index, command in enumerate(parsed)
    ]
    ran = trajectory.ran(reply)
    if ran:
        step["observation"] = {
            "results": [
                {
                    "source_call_id": _tool_call(reply, execution.index),
                    "content": execution.output.decode(errors="replace"),
                }
                for execution in ran
            ]
        }
        step["extra"] = {
            "commands": [
                {
                    "returncode": execution.returncode,
                    "timed_out": execution.timed_out,
                    "output_truncated": execution.truncated,
                    "seconds": execution.wall_s,
                    **({} if execution.reward is None else {"reward": execution.reward}),
                }
                for execution in ran
            ]
        }
    return step


def _tool_call(reply: Call, index: int) -> str:
    return f"turn-{reply.number}-{index}"
