"""`mainspring tasks verify`: gold and empty patches graded, to know which tasks can be trusted."""

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from cli.options import Home, Json, OneSplit, Workers, hint
from cli.tasks import attacks
from cli.terminal_text import echo

NUM_LISTED = 20
FILE = "verification.json"
CONCURRENCY = 64


def verify(
    source: Annotated[
        str | None, typer.Option(help="Task set to verify (`tasks list` shows them).")
    ] = None,
    split: OneSplit = None,
    part: Annotated[
        str, typer.Option("--slice", help='Only tasks at these positions, e.g. "0:5" or "100:".')
    ] = "",
    times: Annotated[
        int,
        typer.Option(
            min=1, max=250, help="Number of gradings of each patch; more find flaky tests."
        ),
    ] = 1,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run. Reuse it to resume. Default: task set and time."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Number of gradings that run at once (default: 64).")
    ] = None,
    retry: Annotated[
        bool,
        typer.Option("--retry", help="In a finished run, grade again the tasks that had a fault."),
    ] = False,
    adversarial: Annotated[
        bool,
        typer.Option("--adversarial", help="Try known exploits instead; none may resolve a task."),
    ] = False,
    exploit: Annotated[
        list[str] | None,
        typer.Option(help="Exploit to try, with --adversarial (default: all). Repeatable."),
    ] = None,
    workers: Workers = True,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Check each task: its gold patch must resolve it, an empty patch must not.

    Campaigns and evaluations use only verified tasks. With --adversarial, scripts that cheat
    without fixing anything are graded instead, and the exit code is 4 if one resolves a task.

    To resume an interrupted run, give its --name; nothing else is needed. Starts local workers
    unless MAINSPRING_TEMPORAL_ADDRESS is set; then existing workers are used.
    """
    import asyncio

    from cli.operations.runs import stored_run
    from mainspring.artifacts.layout import report
    from mainspring.config.evaluations.verification import VerificationConfig
    from mainspring.config.files.reading import check_verification
    from mainspring.errors import UsageError
    from mainspring.ids import campaign_id_at
    from mainspring.integrity.exploits import EXPLOITS
    from reports.whole_file import write_whole

    if (exploit and not adversarial) or (adversarial and times > 1):
        raise UsageError(
            "--exploit goes with --adversarial, and --times with gold and empty patches",
            remedy="try each exploit once: without --times",
        )
    if source is None and name is None:
        raise UsageError(
            "`mainspring tasks verify` needs --source",
            remedy="`mainspring tasks list` lists task sets; or give --name to resume a run",
        )
    names = exploit or [built_in.name for built_in in EXPLOITS]
    tries = {"players": ["exploit"], "exploits": names} if adversarial else {}
    kind = "attack" if adversarial else "verify"
    raw = {
        "name": name or campaign_id_at(kind, source or "", datetime.now()),
        "tasks": {"source": source},
        "policy": {"model": "none"},
        "concurrency": concurrency or CONCURRENCY,
        "slice": part,
        "samples": times,
        **tries,
    }
    if source is not None:
        check_verification(raw, "tasks verify")  # before any service is asked

    def say(text: str) -> None:
        echo(text, dim=True, err=as_json)

    async def configured(run: Any) -> Any:
        if source is not None:
            raw["split"] = await run.split_of(raw, split)
            return check_verification(raw, "tasks verify")
        options = {"split": split, "slice": part, "concurrency": concurrency}
        values = {field: value for field, value in options.items() if value}
        values |= tries | ({"samples": times} if times > 1 else {})
        config = await stored_run.stored(run.db, raw["name"], VerificationConfig, run.settings.home)
        return stored_run.changed(config, values, "tasks verify")

    async def perform() -> tuple[dict[str, Any], bool]:
        from cli.operations.runs.run_launch import conductor

        async with conductor(home, say, own_workers=workers, for_a_program=as_json) as run:
            config = await configured(run)
            record = await run.perform(config, retry=retry)
            tried = bool(config.exploits)
            read, file = (attacks.read, attacks.FILE) if tried else (_read, FILE)
            results = await read(run, config, record.id)
            folder = report(run.settings.home, record.id)
            write_whole(folder / file, json.dumps(results, indent=1) + "\n")
        return results, tried

    results, tried = asyncio.run(perform())
    attacks.tell(results, as_json) if tried else _tell(results, as_json)


async def _read(run: Any, config: Any, campaign: Any) -> dict[str, Any]:
    """Results of each task, from the store."""
    from collections import Counter
    from dataclasses import asdict

    from infra.db.tasks import selections, verifications
    from mainspring.status import Verification

    source, split = config.task_source, config.split
    tasks = await selections.task_ids(run.db, config, split)
    by_task = await verifications.verification_of(run.db, source, split)
    faults = await verifications.faults(run.db, campaign)
    reasons = await verifications.reasons(run.db, campaign)
    passes = await verifications.passes(run.db, campaign)
    counts = Counter(by_task[task] for task in tasks)
    bad = [task for task in tasks if by_task[task] is not Verification.VERIFIED]
    return {
        "campaign": campaign,
        "source": source,
        "split": split,
        "num_tasks": len(tasks),
        "patches": {player.value: asdict(passes[player]) for player in config.players},
        "counts": {word.value: counts[word] for word in Verification},
        "not_verified": {
            task: {
                "verification": by_task[task].value,
                "fault": faults.get(task),
                "reason": reasons.get(task),
            }
            for task in bad
        },
    }


def _tell(results: dict[str, Any], as_json: bool) -> None:
    """Raises WorkFailed when a task could not be graded."""
    from mainspring.errors import WorkFailed

    echo(json.dumps(results)) if as_json else _print(results)
    if results["counts"]["verified"] and not as_json:
        where = f"--source {results['source']} --split {results['split']}"
        hint(f"`mainspring eval run {where} --model MODEL`, or use them in a campaign file")
    num_faults = sum(task["fault"] is not None for task in results["not_verified"].values())
    if num_faults:
        raise WorkFailed(
            f"{num_faults} of {results['num_tasks']} tasks could not be graded",
            remedy="fix what their faults name, then run "
            f"`mainspring tasks verify --name {results['campaign']} --retry`",
        )


def _print(results: dict[str, Any]) -> None:
    from cli.tables import Screen, Table

    console = Screen()
    if bad := results["not_verified"]:
        table = Table("task", "verification", "reason")
        for task, row in list(bad.items())[:NUM_LISTED]:
            why = row["fault"] or row["reason"] or ""
            table.add_row(task, row["verification"].replace("_", " "), why)
        if len(bad) > NUM_LISTED:
            table.caption = f"and {len(bad) - NUM_LISTED} more (--json lists all)"
        console.print(table)
    counts = ", ".join(
        f"{number} {word.replace('_', ' ')}" for word, number in results["counts"].items() if number
    )
    patches = ", ".join(
        f"{player} patches {passes['num_resolved']}/{passes['num_graded']} pass"
        for player, passes in results["patches"].items()
    )
    console.print(patches, soft_wrap=True)
    console.print(
        f"{results['num_tasks']} tasks of {results['source']}, split {results['split']}: {counts}",
        soft_wrap=True,
    )
