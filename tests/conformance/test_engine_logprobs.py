"""The CPU engine against plain transformers: same greedy tokens, same log-probs."""

import asyncio
import random
from pathlib import Path

import httpx
import pytest

from tests.infra.policy.engines import Reference, running, serving, until
from tests.infra.policy.tiny_model import save_tiny_model

TOLERANCE = 1e-4
VOCAB = 300


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


@pytest.fixture(scope="module")
def url(model: Path):
    with serving(model, max_batch=8) as url:
        yield url


async def generate(http: httpx.AsyncClient, ids: list[int], **sampling) -> dict:
    body = {
        "input_ids": ids,
        "return_logprob": True,
        "sampling_params": {"ignore_eos": True, **sampling},
    }
    response = await http.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def served_logprobs(answer: dict) -> list[float]:
    entries = answer["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in entries] == answer["output_ids"]
    return [logprob for logprob, _, _ in entries]


def random_ids(source: random.Random, length: int) -> list[int]:
    return [source.randrange(3, VOCAB) for _ in range(length)]


async def test_concurrent_requests_of_all_lengths_agree(url: str, reference: Reference) -> None:
    source = random.Random(0)
    requests = [
        (random_ids(source, source.randint(1, 90)), source.randint(1, 40), temperature)
        for temperature in (0.0, 1.0, 0.6) * 10
    ]
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answers = await asyncio.gather(
            *(generate(http, ids, max_new_tokens=n, temperature=t) for ids, n, t in requests)
        )
    for (ids, count, temperature), answer in zip(requests, answers, strict=True):
        output = answer["output_ids"]
        assert len(output) == count
        expected = reference.logprobs(ids, output, temperature)
        assert served_logprobs(answer) == pytest.approx(expected, abs=TOLERANCE)
        if temperature == 0:
            assert output == reference.greedy(ids, output)


async def test_batched_request_answers_in_order(url: str, reference: Reference) -> None:
    prompts = [[5, 6, 7], [8] * 30, [9]]
    params = [{"max_new_tokens": n, "temperature": 0, "ignore_eos": True} for n in (3, 9, 5)]
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        response = await http.post(
            "/generate", json={"input_ids": prompts, "sampling_params": params}
        )
    outputs = [answer["output_ids"] for answer in response.json()]
    assert [len(output) for output in outputs] == [3, 9, 5]
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output == reference.greedy(prompt, output)


async def test_turns_of_a_rollout_reuse_kv_and_agree(url: str, reference: Reference) -> None:
    source = random.Random(1)
    shared = random_ids(source, 50)

    async def rollout(http: httpx.AsyncClient, seed: int) -> int:
        own, ids, cached = random.Random(seed), list(shared), 0
        for _ in range(3):
            answer = await generate(http, ids, max_new_tokens=own.randint(5, 25))
            expected = reference.logprobs(ids, answer["output_ids"])
            assert served_logprobs(answer) == pytest.approx(expected, abs=TOLERANCE)
            cached += answer["meta_info"]["cached_tokens"]
            ids = ids + answer["output_ids"] + random_ids(own, 12)
        return cached

    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        cached = await asyncio.gather(*(rollout(http, seed) for seed in range(12)))
    # Turn 2 finds at least the shared prompt, turn 3 at least as much again.
    assert all(count >= 2 * len(shared) - 1 for count in cached)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_paused_requests_go_on_and_agree(url: str, reference: Reference, mode: str) -> None:
    source = random.Random(2)
    prompts = [random_ids(source, length) for length in (3, 40, 17)]
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        under_way = [
            asyncio.create_task(generate(http, ids, max_new_tokens=200)) for ids in prompts
        ]
        await until(http, running(3))
        await http.post("/pause_generation", json={"mode": mode})
        await http.post("/continue_generation", json={})
        answers = await asyncio.gather(*under_way)
    for ids, answer in zip(prompts, answers, strict=True):
        assert answer["meta_info"]["num_retractions"] == (1 if mode == "retract" else 0)
        expected = reference.logprobs(ids, answer["output_ids"])
        assert served_logprobs(answer) == pytest.approx(expected, abs=TOLERANCE)
