"""Views of its session and its task for an agent outside.

Invariant: of a task only what is named here: never its tests, its true fix, or what would tell them
(a patch that brings the bug is the fix reversed). Pure. Imported by the routes of sessions.
"""

from typing import Any

from gateway.sessions.session_desk import Taken
from infra.db.programs.sessions import SessionRecord
from mainspring.programs.profile import MODEL_NAME
from mainspring.programs.session import MAX_PATCH_BYTES
from mainspring.programs.starting import instruction
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SweTask

_FACTS = ("repo", "base_commit", "version")
"""Facts of a task's metadata."""


def told_taken(taken: Taken, host: str) -> dict[str, Any]:
    session, task = taken.session, taken.task
    agent, policy = taken.agent, taken.config.policy
    is_swe = isinstance(task, SweTask)
    results = [*(["patch"] if is_swe else []), *(["reward"] if taken.profile.takes_rewards else [])]
    return {
        **told_session(session),
        "key": taken.key,
        "session_url": f"{host}/sessions/{session.id}",
        "base_urls": _urls(host),
        "base_urls_with_key": _urls(f"{host}/s/{taken.key}"),
        "model": MODEL_NAME,
        "task": _task(task),
        "instruction": instruction(task.issue, task.workdir) if is_swe else task.issue,
        "results": [*results, "error"],
        "limits": {
            "calls": agent.step_limit,
            "calls_per_minute": agent.requests_per_minute,
            "parallel_calls": agent.parallel_requests,
            "seconds": agent.rollout_timeout_s,
            "silence_s": taken.profile.silence_s,
            "max_context": policy.max_context,
            "max_new_tokens": policy.max_new_tokens,
            "patch_bytes": MAX_PATCH_BYTES,
        },
    }


def told_session(session: SessionRecord) -> dict[str, Any]:
    deadline = session.deadline
    return {
        "id": session.id,
        "rollout": session.rollout,
        "state": "open" if session.is_open else "over",
        "ended_by": session.ending,
        "taken_by": session.taken_by or "",
        "deadline": None if deadline is None else deadline.isoformat(timespec="seconds"),
    }


def _urls(root: str) -> dict[str, str]:
    return {"openai": f"{root}/v1", "anthropic": root, "gemini": root}


def _task(task: AnyTask) -> dict[str, Any]:
    view: dict[str, Any] = {"id": task.id, "kind": task.kind, "issue": task.issue}
    view |= {name: task.metadata[name] for name in _FACTS if name in task.metadata}
    if isinstance(task, SweTask):
        files = task.files if task.image is None else None
        return {**view, "image": task.image, "workdir": task.workdir, "files": files}
    return {**view, "data": task.data}
