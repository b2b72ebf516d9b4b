"""`mainspring tasks verify`: gold and empty patches graded, to know which tasks can be trusted."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.cli.options import Home, Json, Workers

NUM_LISTED = 20


def register(tasks: typer.Typer) -> None:
    @tasks.command()
    def verify(
        source: Annotated[str, typer.Option(help="Source of the tasks (`tasks list`).")],
        split: Annotated[str, typer.Option(help="Split of the tasks.")] = "train",
        part: Annotated[str, typer.Option("--slice", help='Only these, as "0:5" or "100:".')] = "",
        times: Annotated[
            int, typer.Option(min=1, max=250, help="Gradings of each patch: more find flaky tasks.")
        ] = 1,
        name: Annotated[
            str | None,
            typer.Option(help="Of the run; the same again goes on. Default: source and time."),
        ] = None,
        concurrency: Annotated[int, typer.Option(min=1, help="Gradings asked for at once.")] = 64,
        retry: Annotated[
            bool, typer.Option("--retry", help="Of a finished run, grade again what had a fault.")
        ] = False,
        workers: Workers = True,
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """Grade gold and empty patches: the first must resolve a task, the second must not.

        Campaigns and evaluations use only tasks found good. Where MAINSPRING_TEMPORAL_ADDRESS is
        set, the team's own workers do it.
        """
        import asyncio

        from mainspring.config import check_campaign
        from mainspring.errors import WorkFailed
        from mainspring.ids import campaign_id_at

        config = check_campaign(
            {
                "name": name or campaign_id_at("verify", source, datetime.now()),
                "tasks": {"source": source},
                "policy": {"model": "none"},
                "evaluation": {"concurrency": concurrency},
                "run": {"split": split, "slice": part, "samples": times},
            },
            "tasks verify",
        )
        found = asyncio.run(_verify(config, home, retry, workers, as_json))
        typer.echo(json.dumps(found)) if as_json else _print(found)
        num_faults = sum(each["fault"] is not None for each in found["not_verified"].values())
        if num_faults:
            raise WorkFailed(
                f"{num_faults} of {found['num_tasks']} tasks could not be graded",
                remedy="mend what their faults name, then the same with "
                f"--name {found['campaign']} --retry",
            )


async def _verify(
    config: Any, home: Path | None, retry: bool, workers: bool, as_json: bool
) -> dict[str, Any]:
    from collections import Counter

    from infra.db import selections, verifications
    from mainspring.status import CampaignKind, Verification
    from workers.runs import conductor

    def say(text: str) -> None:
        typer.secho(text, dim=True, err=as_json)

    async with conductor(home, say, own_workers=workers, for_a_program=as_json) as run:
        hint = f"verify {config.name}: interrupted, the same with --name {config.name} goes on"
        record = await run.perform(config, CampaignKind.VERIFY, hint, retry=retry)
        source, split = config.task_source, config.run.split
        wanted = await selections.task_ids(run.db, config, split)
        known = await verifications.verification_of(run.db, source, split)
        faults = await verifications.faults(run.db, record.id)
    counts = Counter(known[task] for task in wanted)
    bad = [task for task in wanted if known[task] is not Verification.VERIFIED]
    return {
        "campaign": record.id,
        "source": source,
        "split": split,
        "num_tasks": len(wanted),
        "counts": {word.value: counts[word] for word in Verification},
        "not_verified": {
            task: {"verification": known[task].value, "fault": faults.get(task)} for task in bad
        },
    }


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if bad := found["not_verified"]:
        table = Table("task", "verification", "fault")
        for task, known in list(bad.items())[:NUM_LISTED]:
            table.add_row(task, known["verification"].replace("_", " "), known["fault"] or "")
        if len(bad) > NUM_LISTED:
            table.caption = f"and {len(bad) - NUM_LISTED} more (--json lists all)"
        console.print(table)
    said = ", ".join(
        f"{number} {word.replace('_', ' ')}" for word, number in found["counts"].items() if number
    )
    console.print(
        f"{found['num_tasks']} tasks of {found['source']}, split {found['split']}: {said}",
        highlight=False,
        soft_wrap=True,
    )
