"""`mainspring campaign set`: change what a campaign runs with, after it was stored."""

import json
from typing import Annotated, Any

import typer

from cli.agreement import Yes, agreement, counted
from cli.options import CampaignName, Home, Json, with_services
from cli.terminal_text import echo


def set_fields(
    name: CampaignName,
    fields: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE...",
            help="Fields and their new values, as trainer.optimizer.lr=5e-7; `unset` for none.",
        ),
    ],
    from_step: Annotated[
        int | None,
        typer.Option(
            min=1, help="First step that the changes count for (default: the earliest possible)."
        ),
    ] = None,
    yes: Yes = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Change fields of a stored campaign, for the steps that are not planned yet.

    docs/campaign.md tells which fields can change. A finished campaign that gets more steps
    (trainer.num_steps) is started again.
    """
    from cli.operations.runs import campaign_changes
    from mainspring.config.files.layers import assignments

    values = assignments(fields)

    async def go(services: Any) -> Any:
        return await campaign_changes.change(
            services.client,
            services.db,
            name,
            values,
            agreement(yes, quiet=as_json),
            from_step=from_step,
        )

    done = with_services(home, go)
    if as_json:
        document = {
            "campaign": done.campaign,
            "changes": [change.as_dict() for change in done.changes],
            "note": done.note,
        }
        return echo(json.dumps(document))
    number = f"{counted(done.changes)}; " if done.changes else ""
    echo(f"campaign {done.campaign}: {number}{done.note}")
