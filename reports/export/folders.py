"""A folder a rollout: `traj.json`, `patch.diff`, `meta.json`, for people and their scripts.

`meta.json` is written last: a folder that has one is complete.
"""

import json
from pathlib import Path
from typing import Any

from mainspring import __version__
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.costs import num_completion_tokens, num_prompt_tokens
from mainspring.trajectories.turns import Call
from reports.export.trajectory import Trajectory
from reports.whole_file import write_whole

FORMAT = "mainspring-1"


def write_folder(trajectory: Trajectory, directory: Path) -> Path:
    """The folder, below `directory`."""
    folder = directory / trajectory.attempt.name
    write_whole(folder / "traj.json", _text(_traj(trajectory)))
    write_whole(folder / "patch.diff", trajectory.patch)
    write_whole(folder / "meta.json", _text(_meta(trajectory)))
    return folder


def _traj(trajectory: Trajectory) -> dict[str, Any]:
    report = trajectory.report
    return {
        "trajectory_format": FORMAT,
        "messages": trajectory.messages,
        "steps": [_step(trajectory, reply) for reply in trajectory.replies],
        "info": {
            **trajectory.outcome(),
            "grade_report": None if report is None else report.model_dump(mode="json"),
            "grade_output": trajectory.grade_output,
        },
    }


def _step(trajectory: Trajectory, reply: Call) -> dict[str, Any]:
    return {
        "turn": reply.number,
        "parent": reply.parent,
        "reply": reply.text,
        "finish_reason": reply.finish_reason,
        "reply_s": reply.latency_s,
        "n_prompt_tokens": num_prompt_tokens(reply),
        "n_completion_tokens": num_completion_tokens(reply),
        "policy_versions": reply.versions,
        # Of an endpoint's reply to a program; otherwise it is read from the text.
        "parts": None if reply.parts is None else reply.parts.model_dump(mode="json"),
        "commands": [
            {
                "command": ran.command,
                "returncode": ran.returncode,
                "output": ran.output.decode(errors="replace"),
                "output_truncated": ran.truncated,
                "timed_out": ran.timed_out,
                "command_s": ran.wall_s,
                **({} if ran.reward is None else {"reward": ran.reward}),
            }
            for ran in trajectory.ran(reply)
        ],
    }


def _meta(trajectory: Trajectory) -> dict[str, Any]:
    rollout, group, config = trajectory.rollout, trajectory.attempt.group, trajectory.config
    return {
        "mainspring": __version__,
        "model": trajectory.model,
        "player": rollout.player,
        "api": config.policy.api,
        "policy_version": group.policy_version,
        "policy_versions": trajectory.policy_versions,
        "sampling": {
            "temperature": rollout.temperature,
            "max_new_tokens": config.policy.max_new_tokens,
            "max_context": config.policy.max_context,
        },
        "agent": trajectory.agent_section.model_dump(mode="json"),
        "task_source": trajectory.task.source,
        "split": group.split,
        "image": task.image if isinstance(task := trajectory.task, SweTask) else None,
        "epoch": rollout.epoch,
        "n_prompt_tokens": trajectory.num_prompt_tokens,
        "n_completion_tokens": trajectory.num_completion_tokens,
        "started_at": rollout.started_at and rollout.started_at.isoformat(),
        "finished_at": rollout.finished_at and rollout.finished_at.isoformat(),
        "elapsed_s": rollout.spent_s,
        "phase_s": rollout.phase_s,
    }


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
