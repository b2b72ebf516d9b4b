"""Replies in pieces: what an engine has streamed is kept, and continued when it dies."""

import asyncio
import json
import signal
from itertools import accumulate, pairwise
from pathlib import Path

import httpx
import pytest

from infra.policy.engines.client import EngineClient
from infra.policy.protocol import SamplingParams, Versions
from mainspring.trajectories.turns import PartialCall, ReplyPart, VersionSpan
from tests.infra.policy.engines import running, serving, serving_process, until
from tests.infra.policy.tiny_model import save_tiny_model
from tests.waiting import reached

LONG = SamplingParams(max_new_tokens=250, temperature=0)
SEEDED = SamplingParams(max_new_tokens=120, temperature=1.0, seed=3)
PIECE_TOKENS = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models"), seed=0)


class Kept:
    def __init__(self) -> None:
        self.pieces: list[ReplyPart] = []
        self.first = asyncio.Event()

    def __call__(self, part: ReplyPart) -> None:
        self.pieces.append(part)
        self.first.set()


async def test_pieces_hold_what_is_new(model: Path) -> None:
    kept = Kept()
    with serving(model) as engine:
        async with EngineClient([engine]) as client:
            whole = await client.generate([5, 6], LONG, request_id="r", sticky="a")
            streamed = await client.generate([5, 6], LONG, request_id="r", sticky="a", keep=kept)
    assert (streamed.output_ids, streamed.spans) == (whole.output_ids, whole.spans)
    lengths = [piece.end for piece in kept.pieces]
    # Sooner than after so many tokens on a slow machine: a piece is due by the clock as well.
    assert all(0 < now - before <= PIECE_TOKENS for before, now in pairwise([0, *lengths]))
    assert len(whole.output_ids) - lengths[-1] <= PIECE_TOKENS
    for piece, before in zip(kept.pieces, [0, *lengths], strict=False):
        assert piece.start == before
        assert piece.completion_ids == whole.output_ids[before : piece.end]
        assert piece.logprobs == pytest.approx(whole.logprobs[before : piece.end], abs=1e-5)
        assert piece.spans == (VersionSpan(0, before, piece.end),)


async def test_a_reply_continues_on_another_engine_when_its_engine_is_killed(
    model: Path,
) -> None:
    kept, params = Kept(), SEEDED
    with serving(model) as other, serving_process(model) as (engine, process):
        async with EngineClient([other]) as client:
            expected = await client.generate([5, 6], params, request_id="r", sticky="a")
        async with EngineClient([engine, other], any_weights=True) as client:
            asked = client.generate(
                [5, 6], params, request_id="r", sticky="a", keep=kept, home=engine
            )
            reply = asyncio.create_task(asked)
            await reached(kept.first, reply)
            process.send_signal(signal.SIGKILL)
            served = await reply
    assert served.output_ids == expected.output_ids
    # The engine that took over was asked for what was missing only.
    assert served.spans == (VersionSpan(0, 0, len(expected.output_ids)),)


async def test_a_reply_continues_from_what_was_stored(model: Path) -> None:
    with serving(model) as engine:
        async with EngineClient([engine]) as client:
            whole = await client.generate([5, 6], SEEDED, request_id="r", sticky="a")
            half = len(whole.output_ids) // 2
            begun = PartialCall(
                whole.output_ids[:half], whole.logprobs[:half], (VersionSpan(0, 0, half),), 1.5
            )
            rest = await client.generate(
                [5, 6], SEEDED, request_id="r", sticky="a", begun=begun, versions=Versions(0)
            )
            full = PartialCall(
                whole.output_ids, whole.logprobs, (VersionSpan(0, 0, len(whole.output_ids)),), 1.5
            )
            nothing = await client.generate(
                [5, 6], SEEDED, request_id="r", sticky="a", begun=full, keep=Kept()
            )
    assert rest.output_ids == whole.output_ids
    assert rest.logprobs == pytest.approx(whole.logprobs, abs=1e-5)
    assert rest.latency_s > 1.5
    assert (nothing.output_ids, nothing.finish_reason) == (whole.output_ids, "length")


async def test_a_client_that_leaves_ends_its_stream(model: Path) -> None:
    kept = Kept()
    params = SamplingParams(max_new_tokens=250, temperature=0)
    with serving(model, step_interval_s=0.02) as engine:
        async with EngineClient([engine]) as client:
            reply = asyncio.create_task(
                client.generate([5, 6], params, request_id="r", sticky="a", keep=kept)
            )
            await reached(kept.first, reply)
            reply.cancel()
            await asyncio.gather(reply, return_exceptions=True)
        async with httpx.AsyncClient(base_url=engine) as http:
            await until(http, running(0))


def test_the_wire_is_sglangs(model: Path) -> None:
    body = {
        "input_ids": [5, 6],
        "sampling_params": {"max_new_tokens": 70, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "stream": True,
    }
    with serving(model) as engine:
        with httpx.stream("POST", engine + "/generate", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line]
        batch = httpx.post(engine + "/generate", json=body | {"input_ids": [[5], [6]]})
    assert lines.pop() == "data: [DONE]"
    answers = [json.loads(line.removeprefix("data: ")) for line in lines]
    lengths = [*accumulate(len(answer["output_ids"]) for answer in answers)]
    assert all(now - before <= PIECE_TOKENS for before, now in pairwise([0, *lengths]))
    for answer, length in zip(answers, lengths, strict=True):
        meta = answer["meta_info"]
        assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
        # Of the whole reply, as SGLang has it with --incremental-streaming-output.
        assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": length}]
    *earlier, last = [answer["meta_info"]["finish_reason"] for answer in answers]
    assert len(earlier) >= 2 and set(earlier) == {None}
    assert (lengths[-1], last) == (70, {"type": "length", "length": 70})
    assert batch.status_code == 400 and "not a batch" in batch.text
