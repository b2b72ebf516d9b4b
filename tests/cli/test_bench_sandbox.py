"""`mainspring bench sandbox` on real bubblewrap sandboxes: figures, reasons, nothing left."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from cli.bench import bench_sandbox
from cli.bench.bench_sandbox import EXEC_CLI, Cycles, measure
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from mainspring.errors import SandboxError


@pytest.fixture
async def backend(tmp_path: Path) -> BwrapBackend:
    backend = BwrapBackend(tmp_path)
    try:
        await backend.probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    return backend


async def test_figures_by_backend_and_concurrency(
    backend: BwrapBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    figures = await measure(image=None, workdir="/testbed", plan={1: 2, 3: 6})

    assert list(figures) == ["bwrap", "docker", EXEC_CLI]
    assert list(figures["bwrap"]) == ["1", "3"]
    for row in figures["bwrap"].values():
        assert 0 < row["open_warm_p50_ms"] < row["open_p50_ms"]
        assert 0 < row["exec_p50_ms"] <= row["exec_p95_ms"]
        assert row["exec_overhead_p50_ms"] > 0
        assert min(row["open_p50_ms"], row["diff_p50_ms"], row["close_p50_ms"]) > 0
        assert row["cycles_per_s"] > 0
    assert figures["bwrap"]["1"]["max_alive"] == 1
    assert 2 <= figures["bwrap"]["3"]["max_alive"] <= 3
    for name in ("docker", EXEC_CLI):
        assert list(figures[name]) == ["skipped"]
        assert figures[name]["skipped"]
    assert not list(scratch.iterdir())


async def test_a_cancelled_run_closes_its_sandboxes(backend: BwrapBackend) -> None:
    cycles = Cycles(backend, None, "/testbed")
    running = asyncio.create_task(cycles.run(concurrency=2, num_cycles=1000))
    while not cycles.alive:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cycles.alive == 0
    assert await backend.list_open() == []


async def test_a_failing_command_is_no_figure(
    backend: BwrapBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_sandbox, "COMMANDS", ("true", "false"))
    with pytest.raises(SandboxError, match="`false` ended with 1"):
        await Cycles(backend, None, "/testbed").run(concurrency=3, num_cycles=3)
    assert await backend.list_open() == []
