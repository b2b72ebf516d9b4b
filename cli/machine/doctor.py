"""`mainspring doctor`: what this machine can do, and what a backend cannot enforce on it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.options import Json, run_spoken

app = typer.Typer()


@app.command()
def doctor(
    home: Annotated[Path | None, typer.Option(help="State folder.")] = None, as_json: Json = False
) -> None:
    """Check services, sandbox backends and disk. Exits 3 if something required is missing."""
    from cli.operations.checks.machine_checks import examine

    findings = run_spoken(home, examine(home), "the checks take long")
    if as_json:
        typer.echo(json.dumps([finding.as_dict() for finding in findings]))
    else:
        from rich.text import Text

        from cli.tables import Screen, Table

        table = Table("check", "state", "found")
        for finding in findings:
            state = Text("ok", "green") if finding.ok else Text("not fit", "red")
            table.add_row(finding.check, state, finding.found)
        Screen().print(table)
    if not all(finding.ok for finding in findings if finding.required):
        raise typer.Exit(3)
