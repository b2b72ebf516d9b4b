"""`mainspring bench ...`: figures as JSON, measured on this machine in one run."""

import json
from typing import Annotated

import typer

from cli import simulate
from cli.options import Json


def register(app: typer.Typer) -> None:
    bench = typer.Typer(help="Benchmark this machine.", no_args_is_help=True)
    app.add_typer(bench, name="bench")

    @bench.callback()
    def _group() -> None:
        """Benchmark this machine."""

    simulate.register(bench)

    @bench.command()
    def turns(
        turns_per_activity: Annotated[
            int,
            typer.Option(
                min=1, max=50, help="Number of turns that one activity plays, as in [rollout]."
            ),
        ] = 1,
        as_json: Json = False,
    ) -> None:
        """Measure turns per second and overhead per turn, with a no-op model and sandbox.

        "baseline" is the same activities and database called from plain asyncio, without Temporal.
        "a turn" and "a rollout" are what one more of them costs: a rollout's begin, grading and end
        without its turns.
        """
        import asyncio

        from cli.operations.bench_turns import measure

        figures = asyncio.run(measure(turns_per_activity))
        if as_json:
            typer.echo(json.dumps(figures))
            return
        from rich.console import Console

        from cli.tables import Table

        table = Table(
            *("rollouts at once", "turns/s", "overhead p50", "p99", "a turn", "a rollout"),
            *("baseline turns/s", "p50"),
        )
        for concurrency, row in figures.items():
            base = row["baseline"]
            table.add_row(
                concurrency,
                f"{row['turns_per_s']:.1f}",
                f"{row['overhead_p50_ms']:.1f} ms",
                f"{row['overhead_p99_ms']:.1f} ms",
                f"{row['ms_per_turn']:.1f} ms",
                f"{row['ms_per_rollout']:.1f} ms",
                f"{base['turns_per_s']:.1f}",
                f"{base['overhead_p50_ms']:.1f} ms",
            )
        Console().print(table)

    @bench.command()
    def grade(
        num_tasks: Annotated[
            int, typer.Option("--tasks", min=1, help="Number of patches to grade.")
        ] = 500,
        as_json: Json = False,
    ) -> None:
        """Measure how many gold patches are graded per minute, with real workers and sandboxes.

        "faults" are gradings that ended without a verdict because something else failed.
        """
        import asyncio

        from cli.operations.bench_grade import measure

        figures = asyncio.run(
            measure(num_tasks, lambda text: typer.secho(text, dim=True, err=True))
        )
        if as_json:
            typer.echo(json.dumps(figures))
            return
        for key, value in figures.items():
            typer.echo(f"{key:16} {value}")

    @bench.command()
    def sandbox(
        image: Annotated[
            str | None,
            typer.Option(help="Image with bash and a git repository, for the Docker backend."),
        ] = None,
        workdir: Annotated[
            str, typer.Option(help="Folder of the repository in the image.")
        ] = "/testbed",
        as_json: Json = False,
    ) -> None:
        """Measure what opening, using and closing a sandbox costs, by backend and load.

        "docker_exec_cli" is a plain way to compare with: one `docker exec` process per command.
        """
        import asyncio

        from cli.operations.bench_sandbox import measure

        figures = asyncio.run(measure(image, workdir))
        if as_json:
            typer.echo(json.dumps(figures))
            return
        from rich.console import Console

        from cli.tables import Table

        table = Table(
            "backend",
            "at once",
            "open",
            "`true`",
            "exec",
            "exec p95",
            "diff",
            "close",
            "cycles/s",
            "alive",
        )
        table.caption = "milliseconds, medians where not p95"
        columns = (
            *("open_p50_ms", "exec_overhead_p50_ms", "exec_p50_ms", "exec_p95_ms"),
            *("diff_p50_ms", "close_p50_ms"),
        )
        skipped: list[str] = []
        for backend, by_concurrency in figures.items():
            if "skipped" in by_concurrency:
                skipped.append(f"{backend} skipped: {by_concurrency['skipped']}")
                continue
            for concurrency, row in by_concurrency.items():
                if "skipped" in row:
                    skipped.append(f"{backend} at {concurrency} skipped: {row['skipped']}")
                    continue
                table.add_row(
                    backend,
                    concurrency,
                    *(f"{row[column]:.1f}" for column in columns),
                    f"{row['cycles_per_s']:.1f}",
                    str(row["max_alive"]),
                )
        console = Console()
        console.print(table)
        for line in skipped:
            console.print(line, markup=False)
