"""`mainspring bench ...`: figures as JSON, measured on this machine in one run."""

import json
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    bench = typer.Typer(help="Measure this machine.", no_args_is_help=True)
    app.add_typer(bench, name="bench")

    @bench.callback()
    def _group() -> None:
        """Measure this machine."""

    @bench.command()
    def turns(
        as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
    ) -> None:
        """Turns per second and overhead per turn: no-op model and sandbox, all else real.

        "baseline" is the same activities and database called from plain asyncio, without Temporal.
        """
        import asyncio

        from workers.bench_turns import measure

        figures = asyncio.run(measure())
        if as_json:
            typer.echo(json.dumps(figures))
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(
            "rollouts at once", "turns/s", "overhead p50", "p99", "baseline turns/s", "p50"
        )
        for concurrency, row in figures.items():
            base = row["baseline"]
            table.add_row(
                concurrency,
                f"{row['turns_per_s']:.1f}",
                f"{row['overhead_p50_ms']:.1f} ms",
                f"{row['overhead_p99_ms']:.1f} ms",
                f"{base['turns_per_s']:.1f}",
                f"{base['overhead_p50_ms']:.1f} ms",
            )
        Console().print(table)
