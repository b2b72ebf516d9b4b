"""`mainspring campaign start`: the checklist, then the campaign; its workers run elsewhere."""

from pathlib import Path
from typing import Any

from cli.terminal_text import echo


def start_campaign(file: Path, dry_run: bool, force: bool, home: Path | None) -> None:
    import asyncio

    from cli.operations import campaign_launch as launch
    from cli.operations import checklist
    from cli.operations.services import with_services
    from cli.tables import Screen
    from cli.train import print_items
    from infra.db import campaigns
    from mainspring.config.reading import load_campaign
    from mainspring.ids import campaign_id

    config = load_campaign(file)
    console = Screen()

    async def go(services: Any) -> str:
        items = await checklist.of_the_fleet(
            config, services.settings, services.client, services.db
        )
        items += await checklist.of_the_tasks(config, services.db)
        print_items(items, console)
        is_new = await campaigns.find(services.db, campaign_id(config.name)) is None
        if is_new and not force:
            checklist.require(config.name, items)
        if dry_run:
            return ""
        stored = await launch.create(services.db, config)
        await launch.start(services.client, services.db, stored)
        return await launch.left_out(services.db, stored)

    left_out = asyncio.run(with_services(home, go))
    if dry_run:
        return
    if left_out:
        echo(left_out)
    echo(f"campaign {config.name} is started; follow it: mainspring campaign watch {config.name}")
