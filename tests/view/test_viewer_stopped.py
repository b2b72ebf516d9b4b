"""The viewer's process with actions: switched on by the variable, and stopped in the middle."""

import asyncio
import json
import signal
import socket
from pathlib import Path

import httpx
import pytest
from asking import ask, outcome, send
from served import viewing
from store_records import CAMPAIGN, begin_campaign
from viewed import home_of

from infra.db.database import Database
from infra.db.runs import campaigns, events
from mainspring.status import CampaignStatus


async def test_it_ends_in_time_while_an_action_waits(
    db: Database, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin_campaign(db)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.RUNNING)
    home = home_of(tmp_path / "home", store_url)
    # It takes connections, and answers nothing: as a Temporal that stands still.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        stack = {"database_url": store_url, "temporal_address": address}
        (home / "stack.json").write_text(json.dumps(stack))
        monkeypatch.setenv("MAINSPRING_VIEW_ACTIONS", "true")
        with viewing(home, "--port", "0") as (process, printed):
            url = printed[-1].removeprefix("viewer ")
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=40) as client:
                form = await ask(client, f"/do/pause?of={CAMPAIGN}")
                words = await outcome(client, await send(client, form))
                assert address in words and "It is being done" not in words
                again = await ask(client, f"/do/pause?of={CAMPAIGN}")
                waiting = asyncio.create_task(send(client, again))
                await asyncio.sleep(1.0)
                assert not waiting.done()
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, 15) == 0
                with pytest.raises(httpx.HTTPError):
                    (await waiting).raise_for_status()
    assert (await campaigns.get(db, CAMPAIGN)).status is CampaignStatus.RUNNING
    assert not [each for each in await events.newest(db) if each.kind == "command"]
