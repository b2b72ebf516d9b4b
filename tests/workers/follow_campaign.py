"""`python follow_campaign.py DATABASE_URL CAMPAIGN HOME`: as the trainer worker follows it."""

import asyncio
import sys
from pathlib import Path

from infra.db.database import Database
from mainspring.ids import CampaignId
from workers import tracking


async def main() -> None:
    url, campaign, home = sys.argv[1:]
    tracking.LOOK_S = 0.05
    async with Database.open(url) as db:
        await tracking.follow(db, CampaignId(campaign), Path(home))


asyncio.run(main())
