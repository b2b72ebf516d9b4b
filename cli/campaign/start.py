"""`mainspring campaign start`: the checklist, then the campaign; its workers run elsewhere."""

from typing import Annotated, Any

import typer

from cli.agreement import Yes, agreement
from cli.options import (
    CampaignFile,
    DryRun,
    Dump,
    Home,
    SetFields,
    StoredName,
    overrides,
    refuse_without_file,
    tell,
)
from cli.terminal_text import echo


def start(
    file: CampaignFile = None,
    name: StoredName = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if the checklist finds something missing.")
    ] = False,
    given: SetFields = None,
    dump: Dump = False,
    yes: Yes = False,
    home: Home = None,
) -> None:
    """Start a campaign from a TOML file, or resume it. Its workers run elsewhere.

    `mainspring train FILE` starts the workers too. To resume a stored campaign, its --name is
    enough. A file that was changed since changes the campaign, where its fields can change; that
    is asked first.
    """
    import asyncio

    from cli.operations.checks import checklist, task_items
    from cli.operations.machine.services import with_services
    from cli.operations.runs import campaign_launch as launch
    from cli.operations.runs.campaign_changes import change_by_file
    from cli.operations.runs.stored_run import stored
    from cli.tables import Screen
    from cli.train.train import dump_campaign, print_items, refuse_other_name, require_name
    from infra.db.runs import campaigns
    from mainspring.config.campaign import CampaignConfig
    from mainspring.config.files.reading import load_campaign
    from mainspring.ids import campaign_id
    from mainspring.status import CampaignStatus

    from_file = None
    if file is None:
        name = require_name(name, "campaign start")
        refuse_without_file(given, dump, "campaign start")
    else:
        if dump:
            return dump_campaign(file, given)
        from_file = load_campaign(file, tell, overrides(given))
        refuse_other_name(name, from_file.name, file)
        name = from_file.name
    console = Screen()

    async def go(services: Any) -> list[str]:
        config = from_file or await stored(services.db, name, CampaignConfig)
        if from_file is not None and not dry_run:
            await change_by_file(services.db, from_file, agreement(yes))
        before = await campaigns.find(services.db, campaign_id(config.name))
        if before is not None and before.status is CampaignStatus.FINISHED:
            await launch.create(services.db, config)  # refuses a file with other fields
            show = f"mainspring campaign show {name}"
            return [f"campaign {name} has finished: nothing is started; see {show}"]
        items = await checklist.of_the_fleet(
            config, services.settings, services.client, services.db
        )
        if before is None:  # a stored one has its tasks
            items += await task_items.of_the_tasks(config, services.db)
        print_items(items, console)
        status = before.status if before else None
        if status in (None, CampaignStatus.CANCELLED, CampaignStatus.FAILED) and not force:
            checklist.require(config.name, items)
        if dry_run:
            return []
        campaign = await launch.create(services.db, config)
        ran = await launch.runs(services.client, campaign)
        await launch.start(services.client, services.db, campaign, echo)
        done = "runs already" if ran else "is started"
        follow = f"campaign {name} {done}; follow it: mainspring campaign watch {name}"
        return [*([note] if (note := await launch.left_out(services.db, campaign)) else []), follow]

    for line in asyncio.run(with_services(home, go, say=tell)):
        echo(line)
