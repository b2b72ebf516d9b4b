"""`mainspring rollout ...`: see what rollouts did, and write it out."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.cli.options import Home, Json
from mainspring.trajectory_format import TrajectoryFormat

SHOWN_TESTS = 10
"""Names of failed tests that `show` prints; --json has all."""


def register(app: typer.Typer) -> None:
    rollout = typer.Typer(help="Attempts at a task.", no_args_is_help=True)
    app.add_typer(rollout, name="rollout")

    @rollout.command("list")
    def list_(
        campaign: Annotated[str, typer.Argument(help="The campaign's name.")],
        limit: Annotated[int, typer.Option(min=1, help="Newest so many.")] = 40,
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """Rollouts of a campaign, newest group first."""
        from infra.db import rollouts
        from mainspring.ids import campaign_id

        async def read(db: Any) -> list[Any]:
            return await rollouts.list_rollouts(db, campaign=campaign_id(campaign), limit=limit)

        rows = [_row(record) for record in _read(home, read)]
        if as_json:
            typer.echo(json.dumps(rows))
            return
        from rich.console import Console
        from rich.table import Table

        table = Table("rollout", "phase", "stop", "verdict", "reward", "turns", "epoch")
        for row in rows:
            keys = ("id", "phase", "stop_reason", "verdict", "reward", "num_turns", "epoch")
            table.add_row(*("-" if row[key] is None else str(row[key]) for key in keys))
        Console().print(table)

    @rollout.command()
    def show(
        rollout_id: Annotated[str, typer.Argument(help="The rollout's id.")],
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """One rollout, turn by turn."""
        from infra.db import rollouts, turns
        from mainspring.ids import RolloutId

        wanted = RolloutId(rollout_id)

        async def read(db: Any) -> dict[str, Any]:
            record = await rollouts.get(db, wanted)
            replies, commands = await turns.history(db, wanted, record.epoch)
            outputs = {execution.turn: execution for execution in commands}
            report = await rollouts.get_grade_report(db, wanted)
            found = _row(record) | {
                "player": record.player,
                "fault": record.fault,
                "reward_parts": record.reward_parts,
                "suspicions": record.suspicions,
                "grade_report": None if report is None else report.model_dump(mode="json"),
                "turns": [],
            }
            for reply in replies:
                ran = outputs.get(reply.turn)
                found["turns"].append(
                    {
                        "reply": reply.text,
                        "num_prompt_tokens": reply.num_prompt_tokens or len(reply.prompt_ids),
                        "num_completion_tokens": reply.num_completion_tokens
                        or len(reply.completion_ids),
                        "policy_versions": sorted({span.version for span in reply.spans}),
                        "returncode": ran.returncode if ran else None,
                        "output": ran.output.decode(errors="replace") if ran else None,
                    }
                )
            return found

        found = _read(home, read)
        if as_json:
            typer.echo(json.dumps(found))
            return
        from rich.console import Console

        console = Console(highlight=False, markup=False)
        for key in ("id", "task", "player", "stop_reason", "verdict", "reward", "fault"):
            console.print(f"{key:12} {found[key]}")
        for name, value in (found["reward_parts"] or {}).items():
            console.print(f"  {name:24} {value}", style="dim")
        console.print(f"{'suspicions':12} {', '.join(found['suspicions']) or None}")
        for line in _grade_lines(found["grade_report"] or {}):
            console.print(line, style="dim")
        for number, turn in enumerate(found["turns"], 1):
            console.rule(f"turn {number}")
            console.print(turn["reply"])
            if turn["returncode"] is not None:
                console.print(f"[return code {turn['returncode']}]", style="dim")
                console.print(turn["output"], style="dim")

    @rollout.command()
    def export(
        out: Annotated[
            Path, typer.Argument(help="Folder (folders, atif) or file (sft, parquet) to write.")
        ],
        campaign: Annotated[str, typer.Option(help="The campaign's name.")],
        format: Annotated[
            TrajectoryFormat, typer.Option(help="How to write them.")
        ] = TrajectoryFormat.FOLDERS,
        resolved: Annotated[
            bool | None,
            typer.Option(
                "--resolved/--all", help="Which rollouts; sft takes the resolved, the others all."
            ),
        ] = None,
        limit: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
        force: Annotated[bool, typer.Option("--force", help="Write over what is there.")] = False,
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """Write the trajectories of a campaign's ended rollouts."""
        from infra.export import export as exporting
        from mainspring.cli.progress import counting
        from mainspring.ids import campaign_id

        only_resolved = format is TrajectoryFormat.SFT if resolved is None else resolved

        async def write(db: Any) -> int:
            with counting("rollouts") as progress:
                return await exporting.export(
                    db,
                    campaign_id(campaign),
                    out,
                    format=format,
                    resolved=only_resolved,
                    limit=limit,
                    force=force,
                    progress=progress,
                )

        written = _read(home, write)
        if as_json:
            typer.echo(json.dumps({"out": str(out), "format": format, "rollouts": written}))
        else:
            typer.echo(f"{written} rollouts written to {out}")


def _grade_lines(report: dict[str, Any]) -> list[str]:
    """What the verdict was made of, in a few lines."""
    lines = []
    for name in ("fail_to_pass", "pass_to_pass"):
        passed, failed = report.get(f"{name}_passed", ()), report.get(f"{name}_failed", ())
        if passed or failed:
            lines.append(f"  {name:24} {len(passed)} of {len(passed) + len(failed)} pass")
            lines += [f"    failed: {test}" for test in failed[:SHOWN_TESTS]]
    for name in ("judge", "returncode", "score", "note"):
        if report.get(name) not in (None, ""):
            lines.append(f"  {name:24} {report[name]}")
    if report.get("dropped_paths"):
        lines.append(f"  {'left out of the patch':24} {', '.join(report['dropped_paths'])}")
    return lines


def _row(record: Any) -> dict[str, Any]:
    keys = ("id", "task", "sample_index", "phase", "stop_reason", "verdict", "reward")
    return {key: getattr(record, key) for key in (*keys, "num_turns", "epoch")}


def _read(home: Path | None, read: Any) -> Any:
    import asyncio

    from workers.services import with_database

    return asyncio.run(with_database(home, read))
