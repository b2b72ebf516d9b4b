"""A pool of ready sandboxes in front of each backend."""

import asyncio
import dataclasses

from sandbox_backend import make_backend, make_spec, output, run

from infra.sandbox.pool import WarmPool
from infra.sandbox.protocol import Limits
from mainspring.ids import SandboxId


async def test_what_is_ready_is_taken_once(backend):
    pool = WarmPool(backend, size=2)
    one, two = make_spec(backend.name, "one"), make_spec(backend.name, "two")
    await pool.prepare([one, two, one])
    assert (pool.num_ready, await pool.list_open()) == (2, [])
    first, second = await asyncio.gather(pool.open(one), pool.open(two))
    assert pool.num_ready == 0
    await output(first, "echo mine > /tmp/mine")
    assert (await run(second, "ls /tmp/mine")).returncode != 0
    assert sorted(await pool.list_open()) == ["one", "two"]
    third = await pool.open(make_spec(backend.name, "three"))  # none is left: made from nothing
    assert await output(third, "head -1 README.md") == b"one\n"
    for sandbox in (first, second, third):
        await sandbox.close()
    assert await backend.list_open() == []


async def test_only_what_is_alike_is_taken(backend):
    pool = WarmPool(backend, size=2)
    await pool.prepare([make_spec(backend.name, "x", Limits(memory_mb=128))])
    other = await pool.open(make_spec(backend.name, "y", Limits(memory_mb=256)))
    assert pool.num_ready == 1
    labelled = dataclasses.replace(
        make_spec(backend.name, "z", Limits(memory_mb=128)), labels={"rollout": "r"}
    )
    alike = await pool.open(labelled)
    assert (pool.num_ready, alike.id) == (0, "z")
    await asyncio.gather(other.close(), alike.close())


async def test_what_is_not_wanted_any_more_goes(backend):
    pool = WarmPool(backend, size=3)
    first = make_spec(backend.name, "a", Limits(memory_mb=128))
    second = make_spec(backend.name, "b", Limits(memory_mb=256))
    await pool.prepare([first, first, second])
    await pool.prepare([second])
    assert (pool.num_ready, len(await backend.list_open())) == (1, 1)
    await pool.close()
    assert (pool.num_ready, await backend.list_open()) == (0, [])


async def test_one_that_ended_meanwhile_is_not_given_away(backend):
    pool = WarmPool(backend, size=1)
    spec = make_spec(backend.name, "late")
    await pool.prepare([spec])
    [idle] = await backend.list_open()
    await backend.remove(idle)
    sandbox = await pool.open(spec)
    assert await output(sandbox, "echo fine") == b"fine\n"
    await sandbox.close()


async def test_the_ready_ones_of_a_process_that_died_are_left_to_its_reaper(backend, tmp_path):
    dead = make_backend(backend.name, tmp_path)
    await WarmPool(dead, size=1).prepare([make_spec(backend.name, "x")])
    successor = WarmPool(make_backend(backend.name, tmp_path), size=1)
    [left] = await successor.list_open()
    await successor.remove(SandboxId(left))
    assert await successor.list_open() == []
