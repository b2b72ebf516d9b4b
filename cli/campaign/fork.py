"""`mainspring campaign fork`: another campaign that begins with a policy version of this one."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cli.options import CampaignName, Home, Json, with_services
from cli.terminal_text import echo


def fork(
    name: CampaignName,
    new: Annotated[str, typer.Option("--as", help="Name of the fork.")],
    version: Annotated[
        int | None,
        typer.Option(
            "--at", min=0, help="Policy version to begin with (default: the newest checkpoint)."
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Field of the fork that differs (repeatable)."
        ),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Make a campaign that begins with a policy version of another one, optimizer included.

    The parent may run meanwhile; nothing of it changes. With the same settings the fork of a
    reproducible campaign has the parent's next weights, bit for bit.
    """
    from cli.operations.keeping import campaign_fork
    from mainspring.config.files.layers import assignments

    values = assignments(given or [])

    async def go(services: Any) -> Any:
        return await campaign_fork.fork(
            services.db, services.settings.home, name, version, new, values
        )

    done = with_services(home, go)
    if as_json:
        return echo(json.dumps(asdict(done)))
    left = "1 step" if done.num_steps == 1 else f"{done.num_steps} steps"
    echo(
        f"campaign {done.campaign} begins with version {done.version} of {done.parent} and has "
        f"{left} left; start it: mainspring train --name {done.campaign}"
    )
