"""The node's beat outlives the database it speaks to."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from infra.db.database import Database
from infra.sandbox.backends import BACKENDS, Backends
from infra.sandbox.protocol import BackendUnavailable
from infra.temporal.log import runtime
from mainspring.config.settings import Settings
from mainspring.ids import NodeId
from node import beat as node_beat
from node.beat import NodePulse
from node.capacity import Admission


async def test_a_database_that_is_away_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_beat, "NODE_BEAT_S", 0.05)
    admission = Admission(NodeId("n"), 1, lambda: 0, Settings(home=tmp_path))
    backends = Backends({name: BackendUnavailable("not here") for name in BACKENDS})
    async with Database.open("postgresql://me@127.0.0.1:1/nothing") as db:
        beat = NodePulse(db, admission, backends, list, list, runtime().metric_meter)
        with capture_logs() as logs:
            running = asyncio.create_task(beat.run_forever())
            while len(logs) < 3:
                await asyncio.sleep(0.02)
            assert not running.done()
        running.cancel()
        await asyncio.wait([running])
    assert {entry["log_level"] for entry in logs} == {"warning"}
    assert "127.0.0.1:1" in logs[0]["reason"]
