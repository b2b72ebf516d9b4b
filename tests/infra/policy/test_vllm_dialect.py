"""How vLLM is spoken to, where no real vLLM does it on demand: a server with its routes that moves,
lies or fails as told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infra.policy.engines.client import EngineClient
from infra.policy.engines.dialects.vllm import VllmDialect
from infra.policy.engines.partial import UnknownWeights
from infra.policy.engines.wire import Closed
from infra.policy.protocol import MalformedReply, SamplingParams, UnfitEngine
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError, EngineFailing
from tests.infra.policy.tiny_model import save_tiny_model
from tests.web_server import Answer, serving

LABEL = WeightLabel(3, "ab")


def event(start: int, count: int, **choice: Any) -> dict[str, Any]:
    ids = list(range(start, start + count))
    content = [{"token_id": token, "logprob": -0.5, "rank": 1} for token in ids]
    shape = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": None}
    return {"choices": [shape | {"weight_versions": None} | choice]}


@dataclass(slots=True)
class Stub:
    url: str = ""
    labels: list[str] = field(default_factory=lambda: ["3-ab.n1"])
    """Answers about the label, one after the other; the last one stays."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """Of a stream that is cut after them."""
    answer: dict[str, Any] = field(
        default_factory=lambda: event(5, 2, finish_reason="stop", weight_versions=[])
    )
    paused: bool = False
    reload_status: int = 200
    mode: str = "raw_logprobs"
    can_sleep: bool = False
    sleeping: bool = False
    asked: list[tuple[str, Any]] = field(default_factory=list)


@contextmanager
def stub_vllm() -> Iterator[Stub]:
    stub = Stub()

    class Handler(Answer):
        def say(self, answer: dict[str, Any]) -> None:
            self.answer(json.dumps(answer).encode())

        def do_GET(self) -> None:
            if self.path == "/weight_info":
                label = stub.labels.pop(0) if len(stub.labels) > 1 else stub.labels[0]
                return self.say({"weight_version": label})
            if self.path == "/is_paused":
                return self.say({"is_paused": stub.paused})
            if self.path == "/is_sleeping":
                return self.say({"is_sleeping": stub.sleeping})
            model = {"model": "/m", "logprobs_mode": stub.mode, "max_model_len": 64}
            model |= {"enable_sleep_mode": stub.can_sleep}
            config = {"model_config": model, "device_config": {"device": "cpu"}}
            return self.say({"vllm_config": config})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.asked.append((self.path, body))
            if self.path == "/update_weight_version":
                stub.labels[:] = [body["new_version"]]
            if self.path.startswith(("/sleep", "/wake_up")):
                stub.sleeping = self.path.startswith("/sleep")
                return self.answer(b"")  # as vLLM
            if self.path == "/collective_rpc" and stub.reload_status != 200:
                return self.send_error(stub.reload_status)
            if self.path != "/inference/v1/generate":
                return self.say({"success": True})
            if not body["stream"]:
                return self.say(stub.answer)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for each in stub.events:
                self.wfile.write(f"data: {json.dumps(each)}\n\n".encode())
                self.wfile.flush()
            self.close_connection = True
            return None

    with serving(Handler) as address:
        stub.url = f"http://{address}"
        yield stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stub_vllm() as stub:
        yield stub


def client_of(stub: Stub, trained_at: float = 1.0) -> EngineClient:
    return EngineClient([stub.url], dialect=VllmDialect(trained_at=trained_at))


async def ask(client: EngineClient, count: int = 16, **options):
    params = SamplingParams(max_new_tokens=count)
    return await client.generate([5], params, request_id="r", sticky="s", **options)


def paths(stub: Stub) -> list[str]:
    return [path for path, _ in stub.asked]


async def test_only_names_that_vllm_knows_are_sent(stub: Stub) -> None:
    async with client_of(stub) as client:
        reply = await ask(client)
    assert reply.output_ids == (5, 6) and [span.version for span in reply.spans] == [3]
    sent = stub.asked[0][1]["sampling_params"]
    assert sent["max_tokens"] == 16 and "max_new_tokens" not in sent
    body = {"rid": "r", "input_ids": [5], "sampling_params": {"max_new_tokens": 1, "regex": "x"}}
    async with client_of(stub) as client:
        with pytest.raises(EngineError, match="regex"):
            await client.weights.wire.reply(stub.url, body, None)


@pytest.mark.parametrize(
    ("labels", "num_kept"),
    [
        (["3-ab.n1"], 6),
        # The same version, loaded again meanwhile: no token is taken for either.
        (["3-ab.n1", "3-ab.n2"], 0),
        (["3-ab.n1", "3-ab.n1", "loading.n2"], 3),
    ],
)
async def test_tokens_of_a_cut_stream_have_a_version_or_are_lost(
    stub: Stub, labels: list[str], num_kept: int
) -> None:
    stub.labels, stub.events = labels, [event(0, 3), event(3, 3)]
    body = {"rid": "r", "input_ids": [5], "sampling_params": {"max_new_tokens": 16}}
    pieces = []
    async with client_of(stub) as client:
        with pytest.raises(Closed) as cut:
            await client.weights.wire.reply(
                stub.url, body, lambda engine, piece: pieces.append(piece.answer)
            )
    received = [cut.value.so_far] if cut.value.so_far else []
    for answers in (pieces, received):
        assert [token for each in answers for token in each["output_ids"]] == list(range(num_kept))
        spans = [span for each in answers for span in each["meta_info"]["weight_versions"]]
        assert {span["version"] for span in spans} <= {"3-ab"}


async def test_a_load_names_the_version_at_its_end(stub: Stub, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", tied=False)
    async with client_of(stub) as client:
        assert not await client.reconcile(stub.url, model, LABEL)
        assert await client.reconcile(stub.url, model, WeightLabel(4, "cd"))
    order = ["/resume", "/pause?mode=abort", "/update_weight_version", "/collective_rpc"]
    order += ["/reset_prefix_cache", "/update_weight_version", "/resume"]
    assert paths(stub) == order
    names = [body["new_version"] for path, body in stub.asked if path == "/update_weight_version"]
    assert names[0].startswith("loading.") and names[1].startswith("4-cd.")


async def test_after_a_reload_that_failed_no_token_is_asked_for(stub: Stub, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", tied=False)
    stub.reload_status = 500
    async with client_of(stub) as client:
        with pytest.raises(EngineFailing, match="broken weights") as failure:
            await client.reconcile(stub.url, model, WeightLabel(4))
        assert "again" in (failure.value.remedy or "")
        assert paths(stub)[-1] == "/resume"
        with pytest.raises(UnknownWeights):
            await ask(client)
    assert "/inference/v1/generate" not in paths(stub)


async def test_a_tied_model_on_a_cpu_is_refused_before_it_is_loaded(
    stub: Stub, tmp_path: Path
) -> None:
    model = save_tiny_model(tmp_path / "model")
    async with client_of(stub) as client:
        with pytest.raises(UnfitEngine, match="tied embeddings"):
            await client.reconcile(stub.url, model, WeightLabel(4))
    assert "/collective_rpc" not in paths(stub)


async def test_log_probs_before_the_temperature_are_not_trained_on(stub: Stub) -> None:
    async with client_of(stub, trained_at=0.5) as client:
        with pytest.raises(UnfitEngine, match="before the temperature"):
            await ask(client)
    stub.mode = "processed_logprobs"
    async with client_of(stub, trained_at=0.5) as client:
        await ask(client)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (event(5, 2, finish_reason="length"), EngineError, "2 of 16"),
        ({"choices": []}, MalformedReply, "another shape"),
    ],
)
async def test_an_answer_that_must_not_be_taken(
    stub: Stub, answer: dict[str, Any], error: type[EngineError], words: str
) -> None:
    stub.answer = answer
    async with client_of(stub) as client:
        with pytest.raises(error, match=words):
            await ask(client)


async def test_no_log_prob_is_no_number(stub: Stub) -> None:
    stub.answer["choices"][0]["logprobs"]["content"][0]["logprob"] = -9999.0
    async with client_of(stub) as client:
        with pytest.raises(MalformedReply, match="no number"):
            await ask(client)
