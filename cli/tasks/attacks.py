"""`mainspring tasks verify --adversarial`: which known exploits resolve which tasks.

The run is that of `verify` beside this file."""

import json
from typing import Any

from cli.terminal_text import echo

NUM_LISTED = 40
FILE = "exploits.json"


async def read(run: Any, config: Any, campaign: Any) -> dict[str, Any]:
    """Results of each exploit, from the store."""
    from infra.db.reading import exploited
    from infra.db.tasks import selections

    tasks = await selections.task_ids(run.db, config, config.split)
    tried = await exploited.tried(run.db, campaign)
    by_task = {task: [each for each in tried if each.task == task] for task in tasks}
    return {
        "campaign": campaign,
        "source": config.task_source,
        "split": config.split,
        "num_exploits": len(config.exploits),
        "num_judged": sum(each.was_judged for each in tried),
        "num_got_through": sum(each.got_through for each in tried),
        "num_faults": sum(not each.was_judged for each in tried),
        "tasks": [
            {
                "task": task,
                "num_judged": sum(each.was_judged for each in ends),
                "got_through": [each.exploit for each in ends if each.got_through],
                "score": _score(ends),
                "exploits": [
                    {
                        "exploit": each.exploit,
                        "rollout": each.rollout,
                        "verdict": each.verdict,
                        "note": each.note,
                        "suspicions": each.suspicions,
                        "fault": each.fault,
                    }
                    for each in ends
                ],
            }
            for task, ends in by_task.items()
        ],
    }


def tell(found: dict[str, Any], as_json: bool) -> None:
    """Print the scores. Raises WorkFailed when an exploit got through, or could not be judged."""
    from mainspring.errors import WorkFailed

    echo(json.dumps(found)) if as_json else _print(found)
    if found["num_got_through"]:
        raise WorkFailed(
            f"{found['num_got_through']} of {found['num_judged']} exploits resolved a task without "
            "a fix",
            remedy="strengthen the tests of these tasks, or do not train on them",
        )
    if found["num_faults"]:
        raise WorkFailed(
            f"{found['num_faults']} exploits could not be judged",
            remedy="fix what their faults name, then repeat the command with "
            f"--name {found['campaign']} --retry",
        )


def _score(ends: list[Any]) -> float | None:
    """Share of the judged exploits that resolved the task: 0 is best."""
    judged = [each for each in ends if each.was_judged]
    return sum(each.got_through for each in judged) / len(judged) if judged else None


def _print(found: dict[str, Any]) -> None:
    from cli.tables import Screen, Table

    console = Screen()
    bad = [each for each in found["tasks"] if each["got_through"]]
    if bad:
        table = Table("task", "exploits that resolved it", "of")
        for each in bad[:NUM_LISTED]:
            table.add_row(each["task"], ", ".join(each["got_through"]), str(each["num_judged"]))
        if len(bad) > NUM_LISTED:
            table.caption = f"and {len(bad) - NUM_LISTED} more tasks (--json lists all)"
        console.print(table)
    faults = [
        (each["task"], tried["exploit"], tried["fault"])
        for each in found["tasks"]
        for tried in each["exploits"]
        if tried["fault"]
    ]
    for task, exploit, fault in faults[:NUM_LISTED]:
        console.print(f"{task}, {exploit}: {fault}", soft_wrap=True)
    console.print(
        f"{len(found['tasks'])} tasks of {found['source']}, split {found['split']}: "
        f"{found['num_got_through']} of {found['num_judged']} exploits resolved one "
        f"({found['num_exploits']} exploits a task)",
        soft_wrap=True,
    )
