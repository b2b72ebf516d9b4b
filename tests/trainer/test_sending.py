"""Weights from a rank straight into real engines, over gloo: the same bits as from files, and no
engine that serves half of them, whichever process is killed."""

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from activities.training import sending
from engine import update_routes
from infra.policy.engines.client import EngineClient
from infra.policy.model.weight_files import weights_digest
from infra.policy.protocol import SamplingParams, WeightsDiffer
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError
from mainspring.training.training_faults import SendingFailed
from tests.infra.policy.engine_stub import engine_stub
from tests.infra.policy.engines import serving, serving_process
from tests.infra.policy.tiny_model import save_tiny_model
from tests.trainer.senders import RankSource, send
from tests.waiting import DEADLINE_S

GREEDY = SamplingParams(max_new_tokens=12, temperature=0)
NEW = WeightLabel(1, "a")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return save_tiny_model(root / "old", seed=0), save_tiny_model(root / "new", seed=1)


async def ask(client: EngineClient) -> tuple[tuple[int, ...], tuple[float, ...], int]:
    served = await client.generate([5, 6], GREEDY, request_id="r", sticky="a")
    [span] = served.spans
    return served.output_ids, served.logprobs, span.version


def is_ready(url: str) -> bool:
    return httpx.get(url + "/ready").status_code == 200


def info(url: str) -> dict[str, Any]:
    return httpx.get(url + "/model_info").json()


async def test_the_bits_are_those_of_the_files(models: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = models
    source = RankSource(new)
    source.rank.export_hf(tmp_path / "export")
    with serving(old) as one, serving(old) as two, serving(old) as by_disk:
        async with EngineClient([one]) as client, EngineClient([by_disk]) as other:
            await send(source, client, [one, two], tmp_path / "export", NEW)
            await other.publish(by_disk, tmp_path / "export", NEW)
            assert await ask(client) == await ask(other)
        infos = [info(url) for url in (one, two, by_disk)]
    assert source.num_buckets > 3
    assert {each["weight_version"] for each in infos} == {"1-a"}
    assert {each["weights_digest"] for each in infos} == {weights_digest(tmp_path / "export")}


async def test_a_request_that_comes_meanwhile_waits_for_the_new_weights(
    models: tuple[Path, Path],
) -> None:
    old, new = models
    with serving(old) as url:
        async with EngineClient([url]) as client, httpx.AsyncClient(base_url=url) as http:
            requests: list[asyncio.Task[Any]] = []
            loop, seen = asyncio.get_running_loop(), []

            async def look(number: int) -> None:
                if number == 0:
                    requests.append(asyncio.create_task(ask(client)))
                # An engine that is let generate again still does not serve what is half there.
                await http.post("/continue_generation", json={})
                await asyncio.sleep(0.1)
                seen.append((await http.get("/model_info")).json()["weight_version"])
                assert not requests[0].done()

            def on_bucket(number: int) -> None:
                asyncio.run_coroutine_threadsafe(look(number), loop).result(DEADLINE_S)

            await send(RankSource(new, on_bucket), client, [url], new, NEW)
            _, _, version = await requests[0]
    assert len(seen) > 3 and all(WeightLabel.parse(label) is None for label in seen)
    assert version == 1


async def test_a_killed_engine_leaves_the_others_whole(models: tuple[Path, Path]) -> None:
    old, new = models
    with serving_process(old) as (mortal, process), serving(old) as other:

        def on_bucket(number: int) -> None:
            if number == 2:
                process.kill()
                process.wait()

        async with EngineClient([other]) as client:
            before = await ask(client)
            with pytest.raises((EngineError, SendingFailed)):
                await send(RankSource(new, on_bucket), client, [mortal, other], new, NEW)
            assert await client.served_version(other) in (0, None)
            assert info(other)["weights_digest"] == weights_digest(old)
            await client.publish(other, new, NEW)
            after = await ask(client)
    assert (before[2], after[2]) == (0, 1) and before[0] != after[0]
    assert process.returncode == -signal.SIGKILL


async def test_an_engine_whose_sender_was_killed_generates_under_what_it_had(
    models: tuple[Path, Path],
) -> None:
    old, new = models
    with serving(old) as url:
        async with EngineClient([url]) as client:
            before = await ask(client)
            killed = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "tests.trainer.senders", str(new), "2", url],
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
                stderr=subprocess.PIPE,
                text=True,
            )
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            assert await ask(client) == before
            assert info(url)["weights_digest"] == weights_digest(old)
            # Its files are the truth: they are loaded by the next that looks.
            assert await client.reconcile(url, new, NEW)
            assert (await ask(client))[2] == 1


async def test_a_sender_that_falls_silent_is_not_waited_for(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_routes, "SILENCE_S", 0.3)
    with serving(models[0]) as url:
        async with EngineClient([url]) as client, httpx.AsyncClient(base_url=url) as http:
            before = await ask(client)
            await http.post("/pause_generation", json={"mode": "retract"})
            assert (await http.post("/begin_weight_update", json={})).json()["success"]
            assert (await http.post("/begin_weight_update", json={})).status_code == 400
            body = {"new_version": "updating", "abort_all_requests": False}
            await http.post("/update_weight_version", json=body)
            assert await ask(client) == before
            assert (await http.post("/end_weight_update", json={})).status_code == 400


async def test_weights_that_differ_from_the_files_are_refused(models: tuple[Path, Path]) -> None:
    old, new = models

    def flip(number: int) -> None:
        if number == 1:
            source.rank.sender._bucket[0] = source.rank.sender._bucket[0].clone()
            source.rank.sender._bucket[0].view(-1)[0] += 1e-6

    source = RankSource(new, flip)
    with serving(old) as url:
        async with EngineClient([url]) as client:
            with pytest.raises(WeightsDiffer, match=r"by checksum\n.*restart the engine"):
                await send(source, client, [url], new, NEW)
            assert await client.served_version(url) is None
            assert not is_ready(url)
            await client.publish(url, new, NEW)
            assert (await ask(client))[2] == 1


async def test_engines_without_a_checksum_of_files_are_compared_with_each_other(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_stub() as one, engine_stub() as two:
        one.posted = two.posted = {"per_engine_checksum": "aa"}
        monkeypatch.setattr(RankSource, "meet", lambda self, timeout_s: None)
        async with EngineClient([one.url]) as client:
            await send(RankSource(models[1]), client, [one.url, two.url], models[1], NEW)
            paths = [path for path, _ in one.asked]
            assert paths[-3:-1] == ["/update_weight_version", "/continue_generation"]
            two.posted = {"per_engine_checksum": "bb"}
            with pytest.raises(WeightsDiffer, match="their weights differ by SGLang's checksum"):
                await send(RankSource(models[1]), client, [one.url, two.url], models[1], NEW)
    names = [body["new_version"] for path, body in two.asked if path == "/update_weight_version"]
    assert [WeightLabel.parse(name) for name in names] == [None, NEW, None]


async def test_a_group_that_does_not_form_is_told(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MEET_S", 0.5)
    with engine_stub() as absent:
        async with EngineClient([absent.url]) as client:
            with pytest.raises(SendingFailed, match=r"1 engine ranks .* within 0 s|within 1 s"):
                await send(RankSource(models[1]), client, [absent.url], models[1], NEW)


def as_sglang_joins(port: int, name: str, shapes: list[list[int]]) -> list[torch.Tensor]:
    """`init_custom_process_group` of SGLang 0.5.23, and what it receives with."""
    c10d: Any = distributed_c10d
    timeout = c10d.default_pg_timeout
    store, rank, size = next(c10d.rendezvous(f"tcp://127.0.0.1:{port}", 1, 2, timeout=timeout))
    store.set_timeout(timeout)
    group, _ = c10d._new_process_group_helper(
        size,
        rank,
        [],
        c10d.Backend("gloo"),
        c10d.PrefixStore(name, store),
        group_name=name,
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[group] = {i: i for i in range(size)}
    found = [torch.empty(shape) for shape in shapes]
    for work in [dist.broadcast(t, src=0, group=group, async_op=True) for t in found]:
        assert work is not None
        work.wait()
    return found


def test_the_group_is_the_one_that_sglang_joins(models: tuple[Path, Path]) -> None:
    sender = RankSource(models[1]).rank.sender
    meeting = sender.open("127.0.0.1", "mainspring-test", 1)
    bucket = sender.gather(1 << 30)
    assert meeting is not None and bucket is not None
    shapes = [list(shape) for shape in bucket.shapes]
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(as_sglang_joins, meeting.port, meeting.group, shapes)
        sender.meet(30.0)
        expected = list(sender._bucket)
        sender.send()
        found = joined.result(30.0)
    sender.close()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
