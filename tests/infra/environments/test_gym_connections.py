"""Services that misuse their connections: no answer is taken for that to another request."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from infra.environments.gym.client import GymClient, http_client
from infra.environments.gym.service import LOOK_S
from mainspring.environments.families import ServiceForm
from mainspring.environments.protocol import WorldLost
from tests.web_server import Answer, serving

TIMEOUT_S = 20.0


@contextmanager
def misusing() -> Iterator[str]:
    """A service that shows each action it was sent, and sends that answer as the action tells."""

    class Handler(Answer):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b"x" * 65536)

        def do_POST(self) -> None:
            body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            how = body["action"]
            told = {"observation": how, "reward": float(len(how)), "done": False}
            content = json.dumps(told).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            if how == "late":
                time.sleep(1.0)
            if how == "half":
                content = content[: len(content) // 2]
                self.close_connection = True
            if how == "no http":
                head, content = b"220 ready\r\n", b""
                self.close_connection = True
            num_times = 2 if how == "twice" else 1
            self.wfile.write((head + content) * num_times)

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                self.close_connection = True  # the client closed it

    with serving(Handler) as address:
        yield f"http://{address}"


async def test_what_is_sent_beyond_an_answer_is_no_answer_to_the_next_request() -> None:
    with misusing() as url:
        async with http_client() as http:
            client = GymClient(http, "hits", url, ServiceForm())
            for number, action in enumerate(("twice", "a", "twice", "ab", "abc")):
                # Of different worlds: one pool serves them all.
                seen = await client.step(number, action, TIMEOUT_S)
                assert (seen.observation, seen.number) == (action, float(len(action)))


async def test_an_answer_that_comes_late_is_no_answer_to_the_next_request() -> None:
    with misusing() as url:
        async with http_client() as http:
            client = GymClient(http, "hits", url, ServiceForm())
            with pytest.raises(WorldLost, match=r"did not answer within 0\.3 s"):
                await client.step(0, "late", 0.3)
            seen = [await client.step(1, action, TIMEOUT_S) for action in ("a", "late", "ab")]
            assert [each.observation for each in seen] == ["a", "late", "ab"]


@pytest.mark.parametrize("how", ["half", "no http"])
async def test_an_answer_that_breaks_off_is_none(how: str) -> None:
    with misusing() as url:
        async with http_client() as http:
            client = GymClient(http, "hits", url, ServiceForm())
            with pytest.raises(WorldLost, match=r"/step: no answer: ") as caught:
                await client.step(0, how, TIMEOUT_S)
            assert caught.value.remedy


async def test_a_service_whose_page_never_ends_is_there() -> None:
    with misusing() as url:
        async with http_client() as http:
            started = time.monotonic()
            assert await GymClient(http, "hits", url, ServiceForm()).is_there(LOOK_S)
            assert time.monotonic() - started < LOOK_S
