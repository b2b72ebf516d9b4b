"""`mainspring rollout ...`: see what rollouts did."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Home = Annotated[Path | None, typer.Option(help="State folder (default .mainspring).")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


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
            found = _row(record) | {"fault": record.fault, "turns": []}
            for reply in replies:
                ran = outputs.get(reply.turn)
                found["turns"].append(
                    {
                        "reply": reply.text,
                        "num_prompt_tokens": len(reply.prompt_ids),
                        "num_completion_tokens": len(reply.completion_ids),
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
        for key in ("id", "task", "stop_reason", "verdict", "reward", "fault"):
            console.print(f"{key:12} {found[key]}")
        for number, turn in enumerate(found["turns"], 1):
            console.rule(f"turn {number}")
            console.print(turn["reply"])
            if turn["returncode"] is not None:
                console.print(f"[return code {turn['returncode']}]", style="dim")
                console.print(turn["output"], style="dim")


def _row(record: Any) -> dict[str, Any]:
    keys = ("id", "task", "sample_index", "phase", "stop_reason", "verdict", "reward")
    return {key: getattr(record, key) for key in (*keys, "num_turns", "epoch")}


def _read(home: Path | None, read: Any) -> Any:
    import asyncio

    from workers.services import with_database

    return asyncio.run(with_database(home, read))
