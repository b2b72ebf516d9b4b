"""An engine that is stopped while a reply is under way: the stop is no part of what it took."""

import asyncio
import signal
from pathlib import Path

import httpx

from infra.policy.engines.client import SGLangClient
from infra.policy.engines.pulse import SILENT_AFTER_S, Pulse
from infra.policy.protocol import SamplingParams
from tests.infra.policy.engines import running, serving_process, until
from tests.infra.policy.tiny_model import save_tiny_model

STOPPED_S = 2 * SILENT_AFTER_S
LONG = SamplingParams(max_new_tokens=250, temperature=0)


async def test_a_stopped_engine(tmp_path: Path) -> None:
    with serving_process(save_tiny_model(tmp_path / "model")) as (url, process):
        async with (
            SGLangClient([url], any_weights=True) as client,
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

    pulse = Pulse(ask)
    with pulse.watching("x") as first:
        await asyncio.sleep(1.5)
        with pulse.watching("x") as second:
            answers.clear()
            await asyncio.sleep(SILENT_AFTER_S + 1.5)
            with pulse.watching("x") as late:
                await asyncio.sleep(0.1)
            answers.set()
            await asyncio.sleep(0.1)
    assert second.silent_s > SILENT_AFTER_S and first.silent_s > SILENT_AFTER_S
    assert late.silent_s <= second.silent_s / 2
    with pulse.watching("x") as after:
        await asyncio.sleep(1.5)
    assert after.silent_s == 0.0
