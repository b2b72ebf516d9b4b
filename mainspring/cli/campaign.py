"""`mainspring campaign ...`: start, list, show, watch, pause, resume, cancel, report."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from mainspring.cli.options import Home, Json

T = TypeVar("T")
Name = Annotated[str, typer.Argument(help="The campaign's name.")]


def register(app: typer.Typer) -> None:
    campaign = typer.Typer(help="Training runs.", no_args_is_help=True)
    app.add_typer(campaign, name="campaign")

    @campaign.command()
    def start(
        file: Annotated[Path, typer.Argument(help="A campaign file (TOML).")], home: Home = None
    ) -> None:
        """Store the campaign and start it, or take it up again where it stands."""
        from mainspring.config import load_campaign
        from workers import campaigns as launch

        config = load_campaign(file)

        async def go(services: Any) -> tuple[str, str]:
            stored = await launch.create(services.db, config)
            handle = await launch.start(services.client, services.db, stored)
            return handle.id, await launch.left_out(services.db, stored)

        workflow, left_out = _with_services(home, go)
        if left_out:
            typer.echo(left_out)
        typer.echo(f"{workflow} is running; `mainspring campaign watch {config.name}` shows it")
        typer.echo(f"it needs `mainspring worker trainer --campaign {config.name}` and the others")

    @campaign.command("list")
    def list_(home: Home = None, as_json: Json = False) -> None:
        """All campaigns: training, evaluations, verifications and regrades."""
        from infra.db import campaigns

        records = _with_database(home, campaigns.list_all)
        rows = [
            {
                "name": record.id,
                "kind": record.kind.value,
                "status": record.status.value,
                "num_steps": record.config.trainer.num_steps if record.kind == "train" else None,
                "created_at": record.created_at.isoformat(timespec="seconds"),
                "error": record.error,
            }
            for record in records
        ]
        if as_json:
            typer.echo(json.dumps(rows))
            return
        _print_table(["name", "kind", "status", "num_steps", "created_at"], rows)

    @campaign.command()
    def show(name: Name, home: Home = None, as_json: Json = False) -> None:
        """One campaign: steps, evaluations, totals."""
        from infra.report.collect import collect
        from infra.report.summary import summary
        from mainspring.ids import campaign_id

        async def go(db: Any) -> dict[str, object]:
            return summary(await collect(db, campaign_id(name)))

        found = _with_database(home, go)
        if as_json:
            typer.echo(json.dumps(found))
            return
        for key, value in found.items():
            if isinstance(value, dict):
                value = ", ".join(f"{name} {number:g}" for name, number in value.items())
            if value not in (None, ""):
                typer.echo(f"{key:26} {value}")

    @campaign.command()
    def watch(name: Name, home: Home = None) -> None:
        """Follow a campaign until it ends; leaving does not stop it."""
        from workers.watch import follow

        follow(home, name)

    @campaign.command()
    def pause(name: Name, home: Home = None) -> None:
        """No new groups and no new steps; rollouts in flight finish."""
        _update(home, name, "pause")

    @campaign.command()
    def resume(name: Name, home: Home = None) -> None:
        """Go on after `pause`."""
        _update(home, name, "resume")

    @campaign.command()
    def cancel(name: Name, home: Home = None) -> None:
        """Stop for good; what is done stays. What started it takes it up again."""
        from mainspring.ids import campaign_id, campaign_workflow

        async def go(services: Any) -> None:
            workflow = campaign_workflow(campaign_id(name))
            await services.client.get_workflow_handle(workflow).cancel()

        _with_services(home, go)
        typer.echo(f"campaign {name} is being cancelled")

    @campaign.command()
    def report(
        name: Name,
        out: Annotated[Path | None, typer.Option(help="Folder to write to.")] = None,
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """Write report.html and summary.json."""
        from infra.report.collect import collect
        from infra.report.summary import summary, write
        from mainspring.ids import campaign_id
        from mainspring.settings import load_settings

        settings = load_settings(home)
        directory = out or settings.home / "reports" / name

        async def go(db: Any) -> tuple[Path, dict[str, object]]:
            data = await collect(db, campaign_id(name), temporal_ui=settings.temporal_ui)
            page, _ = write(data, directory)
            return page, summary(data, page)

        page, found = _with_database(home, go)
        typer.echo(json.dumps(found) if as_json else str(page))


def _update(home: Path | None, name: str, update: str) -> None:
    from mainspring.ids import campaign_id, campaign_workflow

    async def go(services: Any) -> object:
        workflow = campaign_workflow(campaign_id(name))
        return await services.client.get_workflow_handle(workflow).execute_update(update)

    _with_services(home, go)
    typer.echo(f"campaign {name}: {update} done")


def _with_services(home: Path | None, call: Callable[[Any], Awaitable[T]]) -> T:
    import asyncio

    from workers.services import with_services

    return asyncio.run(with_services(home, call))


def _with_database(home: Path | None, call: Callable[[Any], Awaitable[T]]) -> T:
    import asyncio

    from workers.services import with_database

    return asyncio.run(with_database(home, call))


def _print_table(columns: list[str], rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        cells = (row[column] for column in columns)
        table.add_row(*("" if cell is None else str(cell) for cell in cells))
    Console().print(table)
