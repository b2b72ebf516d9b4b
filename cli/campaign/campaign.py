"""`mainspring campaign ...`: start, plan, list, show, watch, pause, resume, cancel, key,
fingerprint, drop-batch, rollback, report."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import Home, Json, hint, tell, with_database, with_services
from cli.terminal_text import echo

Name = Annotated[str, typer.Argument(help="Name of the campaign.")]
RunName = Annotated[str, typer.Argument(help="Name of the campaign or other run.")]


def register(app: typer.Typer) -> None:
    campaign = typer.Typer(help="Start and follow training campaigns.", no_args_is_help=True)
    app.add_typer(campaign, name="campaign")

    @campaign.command()
    def start(
        file: Annotated[Path | None, typer.Argument(help="Campaign file (TOML).")] = None,
        name: Annotated[
            str | None,
            typer.Option(help="Name of a stored campaign to resume, instead of its file."),
        ] = None,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Print the checklist. Store and start nothing.")
        ] = False,
        force: Annotated[
            bool,
            typer.Option("--force", help="Start even if the checklist finds something missing."),
        ] = False,
        home: Home = None,
    ) -> None:
        """Start a campaign from a TOML file, or resume it. Its workers run elsewhere.

        `mainspring train FILE` starts the workers too. To resume a stored campaign, its --name is
        enough.
        """
        from cli.campaign.start import start_campaign

        start_campaign(file, name, dry_run, force, home)

    from cli.campaign.plan import plan

    campaign.command()(plan)

    @campaign.command("list")
    def list_(home: Home = None, as_json: Json = False) -> None:
        """List all runs: campaigns, supervised runs, evaluations, verifications and regrades."""
        from infra.db.reading import progress
        from infra.db.runs import campaigns

        async def read(db: Any) -> Any:
            return await campaigns.list_all(db), await progress.standings(db)

        records, standings = with_database(home, read)
        rows = [_row(record, standings.get(record.id)) for record in records]
        if as_json:
            typer.echo(json.dumps(rows))
            return
        from cli.campaign import campaign_screen

        campaign_screen.print_list(rows)

    @campaign.command()
    def show(name: RunName, home: Home = None, as_json: Json = False) -> None:
        """Show one campaign or other run: results, what it waits for, steps and totals."""
        from cli.campaign import campaign_screen
        from cli.operations.runs.campaign_view import read
        from mainspring.config.settings import load_settings
        from reports import metrics
        from reports.summary import summary

        settings = load_settings(home)

        async def go(db: Any) -> Any:
            return await read(db, settings, name)

        seen = with_database(home, go)
        if as_json:
            told = {
                **summary(seen.data, seen.report),
                "waits": [wait.as_dict() for wait in seen.waits],
                "metrics": list(metrics.lines(seen.data)),
            }
            typer.echo(json.dumps(told))
            return
        campaign_screen.print_one(seen)

    @campaign.command()
    def watch(name: RunName, home: Home = None) -> None:
        """Follow a campaign until it ends. Ctrl-C leaves the campaign running."""
        from cli.operations.runs.watch import follow

        follow(home, name, tell)

    @campaign.command()
    def pause(name: Name, home: Home = None) -> None:
        """Pause a campaign: running rollouts finish, nothing new starts.

        Without a rollout worker the pause is recorded, and takes effect when one starts.
        """
        _set_paused(home, name, True)

    @campaign.command()
    def resume(name: Name, home: Home = None) -> None:
        """Resume a paused campaign."""
        _set_paused(home, name, False)

    @campaign.command()
    def cancel(name: Name, home: Home = None) -> None:
        """Cancel a campaign. Finished work is kept.

        To resume it, repeat the command that ran it, at any moment.
        """
        from cli.operations.runs import campaign_control

        async def go(services: Any) -> tuple[str, str]:
            campaign = await campaign_control.cancel(services.client, services.db, name)
            return campaign, await campaign_control.unserved(services.client)

        with_database(home, lambda db: campaign_control.refuse_ended(db, name, "cancel"))
        campaign, unserved = with_services(home, go)
        echo(f"campaign {campaign} is being cancelled" + (f"; {unserved}" if unserved else ""))

    @campaign.command()
    def key(
        name: RunName,
        revoke: Annotated[
            bool,
            typer.Option("--revoke", help="Revoke the key. Sessions taken with it continue."),
        ] = False,
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """Make the key with which agents outside take sessions of a run, and print it once."""
        from cli.operations.runs import session_keys

        if revoke:
            revoked = with_database(home, lambda db: session_keys.revoke(db, name))
            told = {"name": revoked, "revoked": True}
            echo(json.dumps(told) if as_json else f"the key of {revoked} is revoked")
            return
        run, made = with_database(home, lambda db: session_keys.make(db, name))
        echo(json.dumps({"name": run, "key": made}) if as_json else made)
        hint(session_keys.next_step(home))

    @campaign.command()
    def fingerprint(
        name: Name,
        calls: Annotated[
            bool,
            typer.Option("--calls", help="Include the SHA-256 of each call of each batch."),
        ] = False,
        against: Annotated[
            Path | None,
            typer.Option(
                help="File with another fingerprint (--json) to compare with. Exit code 4 if they "
                "differ."
            ),
        ] = None,
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """Show the SHA-256 of a reproducible campaign's weights, batches and gradients.

        To find the first call in which two campaigns differ, write both with --calls.
        """
        from cli.campaign.fingerprint_screen import show_fingerprint

        show_fingerprint(name, calls, against, home, as_json)

    @campaign.command("drop-batch")
    def drop_batch(name: Name, home: Home = None) -> None:
        """Drop the batch of the planned step: its groups are masked and replaced by new ones.

        Use it for a batch that cannot be trained. If the campaign has failed, start it again
        afterwards.
        """
        from cli.operations.runs import campaign_control

        async def go(services: Any) -> str:
            return await campaign_control.drop_batch(services.client, services.db, name)

        echo(with_services(home, go))

    @campaign.command()
    def rollback(name: Name, home: Home = None) -> None:
        """Discard the newest policy version and its step. Training resumes from the previous one.

        The campaign must not be running. Groups that may contain tokens of the discarded
        weights are masked.
        """
        from cli.operations.runs import campaign_control

        async def go(services: Any) -> str:
            return await campaign_control.rollback(
                services.client, services.db, services.settings.home, name
            )

        echo(with_services(home, go))

    @campaign.command()
    def report(
        name: RunName,
        out: Annotated[
            Path | None,
            typer.Option(help="Folder for the files (default: <home>/reports/<name>)."),
        ] = None,
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """Write report.html, summary.json and metrics.jsonl."""
        from infra.db.connect import with_recorded_namespace
        from infra.db.naming import campaign_named
        from mainspring.artifacts import layout
        from mainspring.config.settings import USUAL_NAMESPACE, load_settings
        from mainspring.status import CampaignKind
        from reports.collect import collect
        from reports.summary import summary, write

        settings = load_settings(home)

        async def go(db: Any) -> tuple[Path, dict[str, object]]:
            record = await campaign_named(db, name)
            campaign = record.id
            directory = out or layout.report(settings.home, campaign)
            if out is None and record.kind is not CampaignKind.TRAIN:
                directory /= "report"  # beside its own summary.json
            links = await with_recorded_namespace(settings, db)
            data = await collect(
                db,
                campaign,
                temporal_ui=links.temporal_ui,
                temporal_namespace=links.temporal_namespace or USUAL_NAMESPACE,
            )
            page, _ = write(data, directory)
            return page, summary(data, page)

        page, found = with_database(home, go)
        if as_json:
            typer.echo(json.dumps(found))
            return
        echo(str(page))
        hint(f"open {page.absolute().as_uri()}")


def _row(record: Any, standing: Any) -> dict[str, Any]:
    num_steps = _num_steps(record, standing)
    trains = num_steps is not None
    return {
        "name": record.id,
        "kind": record.kind.value,
        "status": record.status.value,
        "num_steps": num_steps,
        "num_steps_done": standing.num_steps if standing and trains else None,
        "num_rollouts_done": standing.num_rollouts if standing else 0,
        "num_scored": standing.num_scored if standing else 0,
        "num_resolved": standing.num_resolved if standing else 0,
        "created_at": record.created_at.isoformat(timespec="seconds"),
        "error": record.error,
    }


def _num_steps(record: Any, standing: Any) -> int | None:
    """Of the whole run; None of one that trains nothing."""
    if record.kind.value == "train":
        return record.config.trainer.num_steps
    if record.kind.value == "sft" and standing is not None:
        return record.config.trainer.steps_of(standing.num_samples)
    return None


def _set_paused(home: Path | None, name: str, paused: bool) -> None:
    from cli.operations.runs import campaign_control

    async def go(services: Any) -> str:
        return await campaign_control.set_paused(services.client, services.db, name, paused, tell)

    verb = "pause" if paused else "resume"
    with_database(home, lambda db: campaign_control.refuse_ended(db, name, verb))
    echo(with_services(home, go))
