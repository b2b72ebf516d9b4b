"""`mainspring quickstart`: a whole campaign on this machine, and its report."""

import json
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def quickstart(
        seed: Annotated[int, typer.Option(min=0, help="Seed of tasks, model and sampling.")] = 0,
        home: Annotated[Path | None, typer.Option(help="State folder.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    ) -> None:
        """Embedded stack, bundled campaign, report. Interrupt it and run it again: it goes on."""
        import asyncio

        from rich.console import Console

        from workers.quickstart import run

        console = Console(stderr=as_json, width=None)
        outcome = asyncio.run(
            run(home, seed, lambda text: console.print(f"[dim]{text}[/dim]", highlight=False))
        )
        if as_json:
            typer.echo(json.dumps(outcome.summary))
            return
        console.print(_table(outcome.summary))
        console.print(f"report       {outcome.report}", highlight=False, soft_wrap=True)
        console.print(
            f"Temporal UI  {outcome.temporal_ui}  (every rollout; `mainspring down` stops it)",
            highlight=False,
            soft_wrap=True,
        )


def _table(summary: dict[str, object]):
    from rich.table import Table

    def percent(key: str) -> str:
        value = summary.get(key)
        return f"{value:.1%}" if isinstance(value, float) else "-"

    table = Table(title=f"campaign {summary['campaign']}", title_justify="left")
    table.add_column("solve rate on held-out tasks")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for label, key in (
        ("sampled at temperature 1", "solve_rate"),
        ("greedy", "greedy"),
        ("held-out templates, sampled", "heldout_templates"),
    ):
        table.add_row(label, percent(f"{key}_before"), percent(f"{key}_after"))
    table.add_section()
    for label, key in (
        ("steps", "num_steps"),
        ("rollouts", "num_rollouts"),
        ("turns", "num_turns"),
    ):
        table.add_row(label, "", str(summary[key]))
    table.add_row("wall time", "", f"{summary['wall_s']:.0f} s")
    table.add_row("largest log-prob gap", "", f"{summary['max_logprob_gap']:.1e}")
    return table
