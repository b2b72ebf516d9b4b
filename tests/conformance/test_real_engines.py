"""One set of promises, kept by each engine that a campaign may train on: `mainspring serve`, vLLM
and SGLang, as processes, through the client that rollouts use. MAINSPRING_TEST_ENGINE_MODEL names
the folder of a model to serve in the place of a tiny one."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from own_output import save_own_output
from real_engines import ABORTS, CONTEXT, KINDS, RealEngine, started

from infra.policy.engines.client import EngineClient
from infra.policy.engines.dialects.choice import dialect_of
from infra.policy.engines.engine_check import check_engine
from infra.policy.engines.loading import load_from_disk
from infra.policy.engines.partial import UnknownWeights
from infra.policy.engines.paused import let_generate, paused_engines
from infra.policy.protocol import Completion, NoEngineAnswered, SamplingParams, TokenOutOfVocabulary
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError, EngineFailing, EngineUnreachable, ModelError
from mainspring.trajectories.turns import PartialCall, ReplyPart, VersionSpan, join_parts
from tests.infra.policy.engines import Reference
from tests.infra.policy.tiny_model import save_tiny_model

TOLERANCE = 1e-4
"""Nats between a served log-prob and that of transformers in float32. Seen: up to 3e-5."""
VOCAB = 300
MODEL = os.environ.get("MAINSPRING_TEST_ENGINE_MODEL")
"""Folder of a model to serve in the place of a tiny one (slow: minutes for each engine)."""
LONG = 300 if MODEL else 1800
"""Tokens of a reply that is interrupted; with its prompt they fit into the context."""
FIRST, SECOND = WeightLabel(0, "aa"), WeightLabel(1, "bb")
PROMPT = [5, 6, 7]
TRIES = 5
SHAPE = {"tied": False, "head_dim": 32, "num_hidden_layers": 12}
pytestmark = pytest.mark.timeout(900)


def never_ending(model: Path) -> None:
    for name, key in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        values = json.loads((model / name).read_text())
        del values[key]
        (model / name).write_text(json.dumps(values))
    (model / "generation_config.json").unlink()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two versions, with an output layer of their own and heads that every engine has kernels for.
    No token ends a reply unless it is asked to. The layers are many so that a token takes some
    milliseconds: vLLM answers no other request for seconds while tokens come faster."""
    root = tmp_path_factory.mktemp("models")
    versions = root / "old", root / "new"
    for seed, version in enumerate(versions):
        if MODEL:
            never_ending(save_own_output(Path(MODEL), version, seed=seed))
        else:
            never_ending(save_tiny_model(version, seed=seed, **SHAPE))
    return versions


@pytest.fixture(scope="module")
def vocab_size(models: tuple[Path, Path]) -> int:
    return json.loads((models[0] / "config.json").read_text())["vocab_size"]


@pytest.fixture(scope="module")
def references(models: tuple[Path, Path]) -> tuple[Reference, Reference]:
    return Reference(models[0]), Reference(models[1])


@pytest.fixture(scope="module", params=KINDS)
def engine(request, models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory):
    log = tmp_path_factory.mktemp(request.param) / "log"
    with started(request.param, models[0], log) as engine:
        yield engine


@pytest.fixture
async def client(engine: RealEngine, models: tuple[Path, Path]) -> AsyncIterator[EngineClient]:
    async with engine.client(models[0]) as client:
        await client.reconcile(engine.url, models[0], FIRST)
        yield client


class Kept:
    """What the client gave to be stored, part by part."""

    def __init__(self) -> None:
        self.parts: list[ReplyPart] = []

    def __call__(self, part: ReplyPart) -> None:
        self.parts.append(part)

    async def until_tokens(self, count: int = 1) -> None:
        async with asyncio.timeout(60):
            while not self.parts or self.parts[-1].end < count:
                await asyncio.sleep(0.01)

    def joined(self) -> ReplyPart:
        """Of the last sampling: one that lost tokens begins anew."""
        first = max(n for n, part in enumerate(self.parts) if part.start == 0)
        return join_parts(self.parts[first:])


def ask(client: EngineClient, ids: list[int], count: int, **options) -> asyncio.Task[Completion]:
    params = SamplingParams(
        count, options.pop("temperature", 1.0), options.pop("stop", ()), options.pop("seed", None)
    )
    reply = client.generate(ids, params, request_id="r", sticky="s", **options)
    return asyncio.create_task(reply)


async def in_flight(client: EngineClient) -> tuple[Kept, asyncio.Task[Completion]]:
    """A reply of which a part is kept. On a busy machine vLLM may tell all of it at once: then it
    is asked for again."""
    for _ in range(TRIES):
        keep = Kept()
        asked = ask(client, PROMPT, LONG, keep=keep)
        await keep.until_tokens(33)
        if keep.parts[-1].end < LONG / 2 and not asked.done():
            return keep, asked
        await asked
    raise AssertionError(f"{TRIES} replies ended before half of them was told")


def check(reply: Completion | ReplyPart, ids: list[int], by_version: tuple[Reference, ...]) -> None:
    """Each token has the log-prob that the version it names gives it."""
    tokens = list(reply.output_ids if isinstance(reply, Completion) else reply.completion_ids)
    assert sum(span.end - span.start for span in reply.spans) == len(tokens)
    for span in reply.spans:
        new = tokens[span.start : span.end]
        expected = by_version[span.version].logprobs(ids + tokens[: span.start], new)
        served = list(reply.logprobs[span.start : span.end])
        assert served == pytest.approx(expected, abs=TOLERANCE), span


async def test_ids_are_consumed_as_sent_and_log_probs_are_those_of_transformers(
    client: EngineClient, references: tuple[Reference, Reference]
) -> None:
    source = random.Random(0)
    prompts = [[source.randrange(3, VOCAB) for _ in range(n)] for n in (1, 3, 17, 64, 200)]
    replies = await asyncio.gather(*(ask(client, ids, 24) for ids in prompts))
    for ids, reply in zip(prompts, replies, strict=True):
        check(reply, ids, references)
        assert reply.spans == (VersionSpan(0, 0, len(reply.output_ids)),)


async def test_greedy_tokens_are_those_of_transformers(
    client: EngineClient, references: tuple[Reference, Reference]
) -> None:
    reply = await ask(client, PROMPT, 24, temperature=0.0)
    assert list(reply.output_ids) == references[0].greedy(PROMPT, list(reply.output_ids))


async def test_log_probs_are_after_the_temperature(
    client: EngineClient, references: tuple[Reference, Reference]
) -> None:
    reply = await ask(client, PROMPT, 24, temperature=0.6)
    expected = references[0].logprobs(PROMPT, list(reply.output_ids), 0.6)
    assert list(reply.logprobs) == pytest.approx(expected, abs=TOLERANCE)


async def test_max_tokens_end_a_reply(client: EngineClient) -> None:
    reply = await ask(client, PROMPT, 7, temperature=0.0)
    assert (len(reply.output_ids), reply.finish_reason) == (7, "length")


async def test_the_stop_token_is_kept_with_its_log_prob(client: EngineClient) -> None:
    free = (await ask(client, PROMPT, 12, temperature=0.0)).output_ids
    stop = free[5]
    reply = await ask(client, PROMPT, 12, temperature=0.0, stop=(stop,))
    assert reply.output_ids == free[: free.index(stop) + 1]
    assert len(reply.logprobs) == len(reply.output_ids)
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize(("length", "count"), [(CONTEXT + 20, 4), (CONTEXT - 10, 64)])
async def test_more_than_the_context_is_refused(
    client: EngineClient, length: int, count: int
) -> None:
    with pytest.raises(EngineError) as refused:
        await ask(client, [9] * length, count)
    assert not isinstance(refused.value, ConnectionError)  # it would be asked again and again
    assert len((await ask(client, PROMPT, 2)).output_ids) == 2


async def test_an_id_without_an_embedding_is_not_sent(engine: RealEngine, vocab_size: int) -> None:
    async with EngineClient([engine.url], vocab_size=vocab_size) as client:
        with pytest.raises(TokenOutOfVocabulary):
            await ask(client, [5, vocab_size], 2)


async def test_pieces_of_a_stream_are_the_reply(
    client: EngineClient, references: tuple[Reference, Reference]
) -> None:
    keep = Kept()
    reply = await ask(client, PROMPT, LONG, keep=keep)
    kept = keep.joined()
    assert len(keep.parts) > 2
    assert kept.completion_ids == reply.output_ids[: kept.end]
    assert kept.logprobs == pytest.approx(reply.logprobs[: kept.end])
    check(kept, PROMPT, references)
    check(reply, PROMPT, references)


async def test_a_reply_that_was_aborted_keeps_its_tokens(
    client: EngineClient, engine: RealEngine, references: tuple[Reference, Reference]
) -> None:
    keep = Kept()
    asked = ask(client, PROMPT, LONG, keep=keep)
    await keep.until_tokens()
    path, body = ABORTS[engine.kind]
    async with httpx.AsyncClient(base_url=engine.url) as http:
        assert (await http.post(path, json=body)).status_code == 200
    reply = await asked
    assert reply.output_ids[: keep.parts[0].end] == keep.parts[0].completion_ids
    check(reply, PROMPT, references)


async def test_requests_wait_while_it_is_paused_and_it_is_found(
    client: EngineClient, engine: RealEngine
) -> None:
    wire, spoken = client.weights.wire, dialect_of(engine.api)
    assert await paused_engines([engine.url], dialect=spoken) == []
    await wire.post(engine.url, *wire.dialect.hold)
    try:
        asked = ask(client, PROMPT, 2)
        [found] = await paused_engines([engine.url], dialect=spoken)
        assert found.url == engine.url and found.resume_path in found.remedy
        assert (await check_engine(engine.url, api=engine.api)).paused
        await asyncio.sleep(0.5)
        assert not asked.done()
    finally:
        await let_generate(wire, engine.url)
    assert len((await asked).output_ids) == 2


async def test_new_weights_under_replies_in_flight(
    client: EngineClient,
    engine: RealEngine,
    models: tuple[Path, Path],
    references: tuple[Reference, Reference],
) -> None:
    prompts = [PROMPT, [8] * 40, [9, 10]]
    kept = [Kept() for _ in prompts]
    asked = [ask(client, ids, LONG, keep=k) for ids, k in zip(prompts, kept, strict=True)]
    for keep in kept:
        await keep.until_tokens()
    # Before a fast engine has ended them; the load does so itself again.
    await client.weights.wire.post(engine.url, *client.weights.wire.dialect.hold)
    assert await client.reconcile(engine.url, models[1], SECOND)
    for ids, keep, reply in zip(prompts, kept, await asyncio.gather(*asked), strict=True):
        check(reply, ids, references)
        check(keep.joined(), ids, references)
    assert {span.version for reply in asked for span in reply.result().spans} == {0, 1}
    # The cache of the old weights is gone.
    check(await ask(client, prompts[1], 8), prompts[1], references)
    assert await client.served_version(engine.url) == 1
    assert not await client.reconcile(engine.url, models[1], SECOND)


async def test_its_state_is_told(
    engine: RealEngine, models: tuple[Path, Path], vocab_size: int
) -> None:
    url, api = engine.url, engine.api
    report = await check_engine(url, model_dir=models[0], api=api, trained_at=0.5)
    assert report.mismatch is None and not report.paused
    assert report.vocab_size == vocab_size
    assert report.context_length is not None and CONTEXT - 2 <= report.context_length <= CONTEXT
    long = await check_engine(url, model_dir=models[0], max_context=CONTEXT + 1, api=api)
    assert long.mismatch is not None and "policy.max_context" in long.mismatch


async def test_weights_that_cannot_be_loaded(
    client: EngineClient,
    engine: RealEngine,
    models: tuple[Path, Path],
    references: tuple[Reference, Reference],
    tmp_path: Path,
) -> None:
    """No token is told a version that did not make it; and the engine serves again at last."""
    other = save_tiny_model(tmp_path / "other", **SHAPE, hidden_size=64)
    with pytest.raises(ModelError):  # before the engine is asked
        await client.reconcile(engine.url, other, SECOND)
    check(await ask(client, PROMPT, 8), PROMPT, references)
    with pytest.raises((EngineError, EngineUnreachable)) as failure:  # as if that had not been seen
        await load_from_disk(client.weights.wire, engine.url, {}, other, SECOND)
    try:
        check(await ask(client, PROMPT, 8), PROMPT, references)
        print(f"\n{engine.kind}: after a load that failed it serves as before")
        return
    except (UnknownWeights, NoEngineAnswered) as refused:
        print(f"\n{engine.kind}: after a load that failed: {refused}; then {failure.value}")
    engine.kill()
    engine.start()
    with pytest.raises(UnknownWeights):
        await ask(client, PROMPT, 8)
    assert await client.reconcile(engine.url, models[0], FIRST)
    check(await ask(client, PROMPT, 8), PROMPT, references)


async def test_an_engine_that_is_killed_and_started_again(
    client: EngineClient,
    engine: RealEngine,
    models: tuple[Path, Path],
    references: tuple[Reference, Reference],
) -> None:
    keep, asked = await in_flight(client)
    engine.kill()
    with pytest.raises((NoEngineAnswered, EngineFailing)):
        await asked
    kept = keep.joined()
    check(kept, PROMPT, references)
    begun = PartialCall(kept.completion_ids, kept.logprobs, kept.spans, kept.latency_s)
    engine.start()
    with pytest.raises(UnknownWeights):  # it was started with files, not with a version
        await ask(client, PROMPT, LONG, begun=begun)
    assert await client.reconcile(engine.url, models[1], SECOND)
    reply = await ask(client, PROMPT, LONG, begun=begun)
    assert reply.output_ids[: kept.end] == kept.completion_ids
    check(reply, PROMPT, references)
    assert {span.version for span in reply.spans} == {0, 1}
