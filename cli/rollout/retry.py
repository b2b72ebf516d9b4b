"""`mainspring rollout retry`: retry rollouts from their first turn."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cli.options import Failed, Home, Json, Label, Masked, with_services
from cli.terminal_text import echo


def retry(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ROLLOUT", help="Ids of the rollouts; or choose with --campaign."),
    ] = None,
    campaign: Annotated[
        str | None, typer.Option(help="Name of the campaign to choose rollouts from.")
    ] = None,
    failed: Failed = False,
    masked: Masked = False,
    where: Annotated[
        str | None,
        typer.Option(
            help="Only rollouts with these values of verdict, stop, fault, split, task, version, "
            "step or group: "
            "\"fault is not null and split = 'test'\"."
        ),
    ] = None,
    with_label: Label = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Retry rollouts from their first turn. The new result replaces the old one.

    Rollouts of a closed training group are final and are refused. A finished evaluation is
    started again to run its rollouts.
    """
    from mainspring.errors import UsageError
    from mainspring.trajectories.rollout_filter import parse

    filters = failed or masked or where is not None or with_label is not None
    if bool(ids) == (campaign is not None) or (ids and filters):
        raise UsageError(
            "give ids of rollouts, or --campaign with a filter", remedy="give one of the two"
        )
    if campaign is not None and not filters:
        raise UsageError(
            f"--campaign {campaign} alone would retry all its rollouts",
            remedy="add --failed, --masked, --label or --where",
        )
    conditions = tuple(parse(where)) if where is not None else ()

    async def go(services: Any) -> Any:
        from cli.operations.runs import campaign_control, labelling, retrying
        from infra.db.naming import campaign_named, rollout_named
        from infra.db.reading import rollout_search

        db = services.db
        if campaign is None:
            named = [await rollout_named(db, id) for id in ids or []]
            chosen = list(dict.fromkeys(named))  # one that is named twice begins again once
        else:
            name = (await campaign_named(db, campaign)).id
            if with_label is not None:
                await labelling.refuse_unknown(db, name, with_label)
            query = rollout_search.RolloutQuery(
                failed=failed, masked=masked, conditions=conditions, label=with_label
            )
            rows, _ = await rollout_search.find(db, name, query)
            chosen = [row.id for row in rows]
        done = await retrying.retry(services.client, db, chosen, skip_final=campaign is not None)
        return done, await campaign_control.unserved(services.client, services.db)

    from cli.operations.runs.stored_run import resuming

    done, unserved = with_services(home, go)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    for rollout in done.reset:
        echo(f"{rollout} is retried")
    for rollout in done.returned:
        echo(f"{rollout} is retried by its run")
    for rollout in done.waiting:
        echo(f"{rollout} has not started: nothing to retry")
    if done.final:
        echo(f"{len(done.final)} rollouts of closed training groups are final: skipped")
    for run in done.restarted:
        again = resuming(done.kinds[run], run, home)
        echo(f"run {run} is started again; without workers of your own, `{again}` starts them")
    if done.reset and unserved:
        echo(unserved)
    if not (done.reset or done.returned or done.waiting):
        echo("no rollout matches")
