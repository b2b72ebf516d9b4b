"""An engine that is stopped while a reply is under way: the stop is no part of what it took."""

import asyncio
import signal
import time
from pathlib import Path

import httpx
import pytest

from infra.policy.engines import pulse
from infra.policy.engines.balancer import EngineMember
from infra.policy.engines.client import EngineClient
from infra.policy.engines.pulse import SILENT_AFTER_S, Pulse
from infra.policy.protocol import SamplingParams
from mainspring.trajectories.turns import ReplyPart
from tests.infra.policy.engines import running, serving, serving_process, until
from tests.infra.policy.tiny_model import save_tiny_model

STOPPED_S = 2 * SILENT_AFTER_S
LONG = SamplingParams(max_new_tokens=250, temperature=0)


async def test_a_stopped_engine(tmp_path: Path) -> None:
    with serving_process(save_tiny_model(tmp_path / "model")) as (url, process):
        async with (
            EngineClient([url], any_weights=True) as client,
            httpx.AsyncClient(base_url=url) as http,
        ):
            request = asyncio.create_task(client.generate([5, 6], LONG, request_id="r", sticky="a"))
            await until(http, running(1))
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(STOPPED_S)
            process.send_signal(signal.SIGCONT)
            reply = await request
    assert len(reply.output_ids) == 250
    assert 0.0 <= reply.latency_s < STOPPED_S


async def test_only_silence_while_watching_counts() -> None:
    answers = asyncio.Event()
    answers.set()

    async def ask(_: str) -> bool:
        await answers.wait()
        return True

    watcher = Pulse(ask)
    with watcher.watching("x") as first:
        await asyncio.sleep(1.5)
        with watcher.watching("x") as second:
            answers.clear()
            await asyncio.sleep(SILENT_AFTER_S + 1.5)
            with watcher.watching("x") as late:
                await asyncio.sleep(0.1)
            answers.set()
            await asyncio.sleep(0.1)
    assert second.silent_s > SILENT_AFTER_S and first.silent_s > SILENT_AFTER_S
    assert late.silent_s <= second.silent_s / 2
    with watcher.watching("x") as after:
        await asyncio.sleep(1.5)
    assert after.silent_s == 0.0


async def test_a_reply_moves_from_an_engine_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "MOVES_AFTER_S", SILENT_AFTER_S + 1)
    model = save_tiny_model(tmp_path / "model")
    parts: list[ReplyPart] = []
    with serving_process(model) as (url, process), serving(model) as other:
        first = EngineMember("frozen", url)
        async with (
            EngineClient([url], any_weights=True) as client,
            httpx.AsyncClient(base_url=url) as http,
        ):
            request = asyncio.create_task(
                client.generate([5, 6], LONG, request_id="r", sticky="a", keep=parts.append)
            )
            await until(http, running(1))
            client.use([first, EngineMember("other", other)])
            process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            reply = await request
            took_s = time.monotonic() - began
            process.send_signal(signal.SIGCONT)
            alone = await client.generate([5, 6], LONG, request_id="s", sticky="b")
    assert (reply.output_ids, reply.engine) == (alone.output_ids, "other")
    assert took_s < 4 * SILENT_AFTER_S
    starts = [part.start for part in parts if part.start]
    assert starts == sorted(set(starts)), "no kept token was sampled again"
