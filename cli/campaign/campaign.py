"""`mainspring campaign ...`: start, plan, list, show, watch, pause, resume, cancel, key,
fingerprint, drop-batch, rollback, report, archive, restore, delete."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.campaign.archive import archive, restore
from cli.campaign.delete import delete
from cli.campaign.fingerprint import fingerprint
from cli.campaign.fork import fork
from cli.campaign.plan import plan
from cli.campaign.retrain import retrain
from cli.campaign.set_fields import set_fields
from cli.campaign.start import start
from cli.options import CampaignName, Home, Json, RunName, hint, tell, with_database, with_services
from cli.terminal_text import echo

app = typer.Typer(
    name="campaign", help="Start and follow training campaigns.", no_args_is_help=True
)
app.command()(start)
app.command()(plan)
app.command()(archive)
app.command()(restore)
app.command()(delete)
app.command("set")(set_fields)
app.command()(fork)
app.command()(retrain)


@app.command("list")
def list_(home: Home = None, as_json: Json = False) -> None:
    """List all runs: campaigns, supervised runs, evaluations, verifications and regrades."""
    from infra.db.reading import progress
    from infra.db.runs import campaigns

    async def read(db: Any) -> Any:
        return await campaigns.list_all(db), await progress.standings(db)

    records, standings = with_database(home, read)
    found = [(record, standings.get(record.id)) for record in records]
    rows = [_row(*each, progress.num_steps_done(*each)) for each in found]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    from cli.campaign import campaign_screen

    campaign_screen.print_list(rows)


@app.command()
def show(name: RunName, home: Home = None, as_json: Json = False) -> None:
    """Show one campaign or other run: results, what it waits for, steps and totals."""
    from cli.campaign import campaign_screen
    from cli.operations.runs.campaign_view import read
    from infra.stack import viewer_address
    from mainspring.config.settings import load_settings
    from reports import metrics
    from reports.summary import summary

    settings = load_settings(home)

    async def go(db: Any) -> Any:
        return await read(db, settings, name, of_steps=as_json)

    seen = with_database(home, go)
    if as_json:
        document = {
            **summary(seen.data, seen.report),
            "waits": [wait.as_dict() for wait in seen.waits],
            "clocks": seen.clocks,
            "metrics": list(metrics.lines(seen.data)),
        }
        typer.echo(json.dumps(document))
        return
    page = viewer_address.page_of(settings.home, "c", seen.record.id)
    campaign_screen.print_one(seen, view=page)


@app.command()
def watch(name: RunName, home: Home = None) -> None:
    """Follow a campaign until it ends. Ctrl-C leaves the campaign running."""
    from cli.operations.runs.watch import follow

    follow(home, name, tell)


@app.command()
def pause(name: CampaignName, home: Home = None) -> None:
    """Pause a campaign: running rollouts finish, nothing new starts.

    Without a rollout worker the pause is recorded, and takes effect when one starts.
    """
    _set_paused(home, name, True)


@app.command()
def resume(name: CampaignName, home: Home = None) -> None:
    """Resume a paused campaign."""
    _set_paused(home, name, False)


@app.command()
def cancel(name: CampaignName, home: Home = None) -> None:
    """Cancel a campaign. Finished work is kept.

    To resume it, repeat the command that ran it, at any moment.
    """
    from cli.operations.runs import campaign_control

    async def go(services: Any) -> tuple[str, str]:
        campaign = await campaign_control.cancel(services.client, services.db, name)
        return campaign, await campaign_control.unserved(services.client, services.db, campaign)

    with_database(home, lambda db: campaign_control.refuse_ended(db, name, "cancel"))
    campaign, unserved = with_services(home, go)
    echo(f"campaign {campaign} is being cancelled" + (f"; {unserved}" if unserved else ""))


@app.command()
def key(
    name: RunName,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Revoke the key. Sessions taken with it continue.")
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Make the key with which agents outside take sessions of a run, and print it once."""
    from cli.operations.runs import session_keys

    if revoke:
        revoked = with_database(home, lambda db: session_keys.revoke(db, name))
        document = {"name": revoked, "revoked": True}
        echo(json.dumps(document) if as_json else f"the key of {revoked} is revoked")
        return
    run, is_new = with_database(home, lambda db: session_keys.make(db, name))
    echo(json.dumps({"name": run, "key": is_new}) if as_json else is_new)
    hint(session_keys.next_step(home))


app.command()(fingerprint)


@app.command("drop-batch")
def drop_batch(name: CampaignName, home: Home = None) -> None:
    """Drop the batch of the planned step: its groups are masked and replaced by new ones.

    Use it for a batch that cannot be trained. If the campaign has failed, start it again
    afterwards.
    """
    from cli.operations.runs import campaign_control

    async def go(services: Any) -> str:
        return await campaign_control.drop_batch(services.client, services.db, name)

    echo(with_services(home, go))


@app.command()
def rollback(name: CampaignName, home: Home = None) -> None:
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


@app.command()
def report(
    name: RunName,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files (default: <home>/reports/<name>).")
    ] = None,
    rollouts: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of rollouts whose pages it has (default: 16 of a run that trains; of "
            "others those that failed, up to 500).",
        ),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Write report.html with its pages, summary.json and metrics.jsonl."""
    from cli.operations.runs.frozen_pages import write_report
    from cli.progress import counting
    from infra.db.naming import campaign_named
    from mainspring.artifacts import layout
    from mainspring.config.settings import load_settings
    from mainspring.status import CampaignKind

    settings = load_settings(home)

    async def go(db: Any) -> tuple[Path, dict[str, object]]:
        record = await campaign_named(db, name)
        directory = out or layout.report(settings.home, record.id)
        if out is None and record.kind is not CampaignKind.TRAIN:
            directory /= "report"  # beside its own summary.json
        with counting("pages") as told:
            return await write_report(db, settings, record.id, directory, rollouts, told)

    page, figures = with_database(home, go)
    if as_json:
        typer.echo(json.dumps(figures))
        return
    echo(str(page))
    hint(f"open {page.absolute().as_uri()}")


def _row(record: Any, standing: Any, num_steps_done: int) -> dict[str, Any]:
    num_steps = _num_steps(record, standing)
    trains = num_steps is not None
    return {
        "name": record.id,
        "kind": record.kind.value,
        "retrained_from": record.retrained_from,
        "status": (record.incomplete or record.status).value,
        "num_steps": num_steps,
        "num_steps_done": num_steps_done if trains else None,
        "num_rollouts_done": standing.num_rollouts if standing else 0,
        "num_scored": standing.num_scored if standing else 0,
        "num_resolved": standing.num_resolved if standing else 0,
        "created_at": record.created_at.isoformat(timespec="seconds"),
        "error": record.error,
    }


def _num_steps(record: Any, standing: Any) -> int | None:
    """Number of steps of the whole run; None of one that trains nothing."""
    if record.kind.value == "train":
        return record.num_steps
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
