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
    by_task = {task: [end for end in tried if end.task == task] for task in tasks}
    return {
        "campaign": campaign,
        "source": config.task_source,
        "split": config.split,
        "num_exploits": len(config.exploits),
        "num_judged": sum(end.was_judged for end in tried),
        "num_got_through": sum(end.got_through for end in tried),
        "num_faults": sum(not end.was_judged for end in tried),
        "tasks": [
            {
                "task": task,
                "num_judged": sum(end.was_judged for end in ends),
                "got_through": [end.exploit for end in ends if end.got_through],
                "score": _score(ends),
                "exploits": [
                    {
                        "exploit": end.exploit,
                        "rollout": end.rollout,
                        "verdict": end.verdict,
                        "note": end.note,
                        "suspicions": end.suspicions,
                        "fault": end.fault,
                    }
                    for end in ends
                ],
            }
            for task, ends in by_task.items()
        ],
    }


def tell(results: dict[str, Any], as_json: bool) -> None:
    """Print the scores. Raises WorkFailed when an exploit got through, or could not be judged."""
    from mainspring.errors import WorkFailed

    echo(json.dumps(results)) if as_json else _print(results)
    if results["num_got_through"]:
        raise WorkFailed(
            f"{results['num_got_through']} of {results['num_judged']} exploits resolved a task "
            "without a fix",
            remedy="strengthen the tests of these tasks, or do not train on them",
        )
    if results["num_faults"]:
        raise WorkFailed(
            f"{results['num_faults']} exploits could not be judged",
            remedy="fix what their faults name, then repeat the command with "
            f"--name {results['campaign']} --retry",
        )


def _score(ends: list[Any]) -> float | None:
    """Share of the judged exploits that resolved the task: 0 is best."""
    judged = [end for end in ends if end.was_judged]
    return sum(end.got_through for end in judged) / len(judged) if judged else None


def _print(results: dict[str, Any]) -> None:
    from cli.tables import Screen, Table

    console = Screen()
    bad = [task for task in results["tasks"] if task["got_through"]]
    if bad:
        table = Table("task", "exploits that resolved it", "of")
        for row in bad[:NUM_LISTED]:
            table.add_row(row["task"], ", ".join(row["got_through"]), str(row["num_judged"]))
        if len(bad) > NUM_LISTED:
            table.caption = f"and {len(bad) - NUM_LISTED} more tasks (--json lists all)"
        console.print(table)
    faults = [
        (row["task"], tried["exploit"], tried["fault"])
        for row in results["tasks"]
        for tried in row["exploits"]
        if tried["fault"]
    ]
    for task, exploit, fault in faults[:NUM_LISTED]:
        console.print(f"{task}, {exploit}: {fault}", soft_wrap=True)
    console.print(
        f"{len(results['tasks'])} tasks of {results['source']}, split {results['split']}: "
        f"{results['num_got_through']} of {results['num_judged']} exploits resolved one "
        f"({results['num_exploits']} exploits a task)",
        soft_wrap=True,
    )
