"""Real engines for tests: in a thread of this process, or as a process that can be killed."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM

from engine.server import EngineOptions, EngineServer
from tests.waiting import DEADLINE_S

COMMAND = (
    "import typer; from cli.machine import serve; "
    "app = typer.Typer(); app.add_typer(serve.app); app()"
)


@contextmanager
def serving(directory: Path, **options: Any) -> Iterator[str]:
    """URL of an engine running in a thread."""
    server = EngineServer(EngineOptions(model=directory, port=0, **options))
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        wait_until_healthy(server.url)
        yield server.url
    finally:
        server.shut_down()
        thread.join()


@contextmanager
def serving_process(directory: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """URL and process of `mainspring serve`."""
    arguments = ["serve", "--no-restart", "--model", str(directory), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        url = ""
        for line in process.stderr:
            if line.startswith("serving "):
                url = line.split()[-1]
                break
        wait_until_healthy(url)
        yield url, process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def wait_until_healthy(url: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            httpx.get(url + "/health").raise_for_status()
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline, f"{url} did not come up"
            time.sleep(0.02)


async def until(http: httpx.AsyncClient, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the engine's state (see /server_info) is as asked."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds((await http.get("/server_info")).json()["internal_states"][0]):
            await asyncio.sleep(0.01)


def running(count: int) -> Callable[[dict[str, Any]], bool]:
    return lambda state: state["num_running_reqs"] == count


class Reference:
    """Plain transformers: one forward pass over one sequence, no cache, no batch."""

    def __init__(self, directory: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    @torch.no_grad()
    def logprobs(
        self, prompt: list[int], output: list[int], temperature: float = 1.0
    ) -> list[float]:
        logits = self.logits(prompt, output)
        table = torch.log_softmax(logits / (temperature or 1.0), -1)
        return [table[i, token].item() for i, token in enumerate(output)]

    def greedy(self, prompt: list[int], output: list[int]) -> list[int]:
        """The most likely token at each position of `output`, given those before."""
        return self.logits(prompt, output).argmax(-1).tolist()

    @torch.no_grad()
    def logits(self, prompt: list[int], output: list[int]) -> torch.Tensor:
        ids = torch.tensor([prompt + output])
        return self._model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
