"""Measures litellm's proxy as `mainspring bench gateway` measures the gateway: same sessions, same
prompts, an engine that answers at once.

    python -m cli.bench.compare_proxy /path/to/litellm --sessions 1,32,200 --calls 40

Prints one JSON object by number of sessions; `engine` is the endpoint asked directly. The proxy
keeps nothing: it stores no reply, counts no limit and makes no tokens. litellm is no dependency:
install `litellm[proxy]` into an environment of its own.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from cli.bench.bench_gateway import MIN_CALLS, TOTAL_CALLS, WORDS, read_numbers
from cli.bench.fakes.asking_sandbox import SessionLoad
from infra.stack import ports

REPLY = "I look at the file first."
START_S = 120.0
WARM_UP = (4, 5)
CONFIG = """
model_list:
  - model_name: default
    litellm_params: {{model: openai/default, api_base: "http://127.0.0.1:{port}/v1", api_key: none}}
litellm_settings: {{telemetry: false}}
"""
VARIABLES = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    # It listens at loopback, for a client that sends no key.
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}
WORD_TOKENS = 1.3
"""About what a word takes."""


async def endpoint(port: int) -> None:
    """An OpenAI-compatible endpoint that answers at once."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": REPLY},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = json.dumps(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "default",
            "choices": [choice],
            "usage": usage,
        }
    ).encode()
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                _, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                headers = dict(line.split(": ", 1) for line in lines if line)
                await reader.readexactly(int(headers.get("content-length", 0)))
                writer.write(head.encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 20)
    await server.serve_forever()


async def played(port: int, num_sessions: int, num_calls: int, num_tokens: int) -> dict[str, Any]:
    load = SessionLoad(num_sessions, num_calls, WORDS * round(num_tokens / WORD_TOKENS / 15))

    async def play() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            load.latencies_s.append(await load.asked(reader, writer))
        finally:
            writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(play() for _ in range(num_sessions)))
    took_s = time.perf_counter() - started
    latencies_ms = 1000 * np.array(load.latencies_s)
    return {
        "p50_ms": round(float(np.percentile(latencies_ms, 50)), 2),
        "p99_ms": round(float(np.percentile(latencies_ms, 99)), 2),
        "requests_per_s": round(latencies_ms.size / took_s, 2),
        "num_calls": num_calls,
        "load_average": round(os.getloadavg()[0], 1),
    }


async def until_open(port: int) -> None:
    async with asyncio.timeout(START_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.2)
                continue
            return writer.close()


@contextmanager
def running(command: list[str], **variables: str) -> Iterator[psutil.Process]:
    with tempfile.TemporaryFile() as log:
        process = psutil.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
        try:
            yield process
        finally:
            process.kill()
            process.wait()


async def measure(
    litellm: Path, sessions: list[int], num_calls: int, prompt_tokens: list[int]
) -> dict[str, Any]:
    engine_port, proxy_port = ports.pick(), ports.pick()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG.format(port=engine_port))
        own = [sys.executable, "-m", "cli.bench.compare_proxy", "--endpoint", str(engine_port)]
        words = ["--config", str(config), "--host", "127.0.0.1", "--port", str(proxy_port)]
        with (
            running(own),
            running([str(litellm), *words], **VARIABLES) as proxy,
        ):
            await until_open(engine_port)
            await until_open(proxy_port)
            await played(proxy_port, *WARM_UP, prompt_tokens[0])
            for number in sessions:
                num_played = min(num_calls, max(MIN_CALLS, TOTAL_CALLS * num_calls // number))
                sizes = prompt_tokens if number == sessions[0] else prompt_tokens[:1]
                figures[str(number)] = {
                    str(size): {
                        "proxy": await played(proxy_port, number, num_played, size),
                        "engine": await played(engine_port, number, num_played, size),
                    }
                    for size in sizes
                }
            figures["memory_mib"] = round(proxy.memory_info().rss / (1 << 20))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("litellm", type=Path, nargs="?")
    parser.add_argument("--sessions", default="1,32,200")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--prompt-tokens", default="1000,8000,20000")
    parser.add_argument("--endpoint", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.endpoint is not None:
        asyncio.run(endpoint(arguments.endpoint))
        return
    if arguments.litellm is None or not arguments.litellm.exists():
        parser.error("name litellm's program: /path/to/its/environment/bin/litellm")
    sessions = read_numbers("--sessions", arguments.sessions, 1000)
    sizes = read_numbers("--prompt-tokens", arguments.prompt_tokens, 100_000)
    print(json.dumps(asyncio.run(measure(arguments.litellm, sessions, arguments.calls, sizes))))


if __name__ == "__main__":
    main()
