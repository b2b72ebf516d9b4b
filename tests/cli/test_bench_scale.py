"""`mainspring bench scale` with real worker processes: figures, bad numbers, nothing left."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.bench.bench_scale import Figures, read_numbers
from cli.bench.bench_soak import measure_soak, slopes
from cli.bench.loaded_stack import Load
from cli.main import app
from cli.operations.machine.cancelled_by import cancelled_by
from cli.progress import counting
from infra.stack.postgres_server import Postgres
from infra.stack.temporal_server import Temporal
from mainspring.errors import UsageError
from tests.processes import runs

PROCESSES = {"rollout_worker", "node", "temporal", "postgres"}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the bench makes its home: below a folder that `nobody` may pass."""
    folder = Path(tempfile.mkdtemp(prefix="mainspring-scale-"))
    folder.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    folder.rmdir()


def test_figures_of_a_few_rollouts(scratch: Path) -> None:
    arguments = ["--rollouts", "4", "--turns", "2", "--turns-per-activity", "1", "--json"]
    ended = CliRunner().invoke(app, ["bench", "scale", *arguments])
    assert ended.exit_code == 0, ended.output
    figures = json.loads(ended.stdout)
    assert list(figures) == ["4"]
    row = figures["4"]
    assert (row["num_ended"], row["unexpected_ends"], row["num_calls"]) == (4, 0, 8)
    assert 1 <= row["most_in_flight"] <= 4
    assert row["turns_per_s"] == pytest.approx(8 / row["wall_s"], rel=0.05)
    assert 0 < row["overhead_p50_ms"] <= row["overhead_p99_ms"]
    assert set(row["peak_mib_of"]) == set(row["cpu_ms_per_turn_of"]) == PROCESSES
    assert min(row["peak_mib_of"].values()) > 10
    workers = row["peak_mib_of"]["rollout_worker"] + row["peak_mib_of"]["node"]
    assert row["workers_peak_mib"] == pytest.approx(workers, abs=0.2)
    assert row["bytes_of"]["temporal"] > 0 and row["bytes_of"]["postgres"] > 0
    assert row["history_events_per_turn"] > 5 and row["history_bytes_per_turn"] > 500
    assert not list(scratch.iterdir())


def test_a_killed_bench_leaves_no_server_and_no_folder(scratch: Path) -> None:
    """As `timeout` ends it: twice, the process and its group."""
    arguments = ["--rollouts", "2", "--turns", "500", "--turns-per-activity", "1"]
    bench = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "bench", "scale", *arguments],
        env=os.environ | {"TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    servers: list[int] = []
    while len(servers) < 2 and time.monotonic() < deadline:
        homes = list(scratch.iterdir())
        pids = [s(home).daemon.pid() for home in homes for s in (Postgres, Temporal)]
        servers = [pid for pid in pids if pid is not None]
        time.sleep(0.05)
    assert len(servers) == 2
    for _ in range(2):
        bench.send_signal(signal.SIGTERM)
    _, told = bench.communicate(timeout=60)
    assert bench.returncode == 130 and "removed" in told and "Traceback" not in told
    assert not any(runs(pid) for pid in servers)
    assert not list(scratch.iterdir())


async def test_a_second_signal_does_not_cut_off_what_removes_things() -> None:
    removed = asyncio.Event()

    async def work() -> None:
        with cancelled_by(signal.SIGTERM):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(60)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.01)
                removed.set()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
    assert removed.is_set()


@pytest.mark.parametrize("numbers", ["0", "many", "50,20", "4,4", "", "4,", "1.5", "99999999"])
def test_numbers_that_cannot_be_measured(numbers: str) -> None:
    with pytest.raises(UsageError, match="--rollouts") as refused:
        read_numbers(numbers)
    assert refused.value.exit_code == 2


def test_more_turns_an_activity_than_a_rollout_has() -> None:
    ended = CliRunner().invoke(app, ["bench", "scale", "--turns", "2"])
    assert isinstance(ended.exception, UsageError) and not ended.stdout


@pytest.mark.long
@pytest.mark.parametrize("is_sandboxed", [False, True])
async def test_a_soak_keeps_rollouts_in_flight(scratch: Path, is_sandboxed: bool) -> None:
    figures: dict[str, Figures] = {}
    load = Load(num_turns=4, turns_per_activity=2, limit_s=30, is_sandboxed=is_sandboxed)
    await measure_soak(3, 8, load, counting, figures, sample_every_s=1)
    row = figures["3"]
    assert row["num_ended"] > 3 and row["unexpected_ends"] == 0
    assert len(row["samples"]) >= 6
    for sample in row["samples"]:
        assert set(sample["memory_mib_of"]) == set(sample["open_files_of"]) == PROCESSES
        assert sample["left_of"]["folders"] > 0 and sample["left_of"]["processes"] > 4
    assert set(row["memory_slope_mib_per_hour_of"]) == PROCESSES
    assert not list(scratch.iterdir())


def test_slope_of_what_grows_after_it_has_filled() -> None:
    grows = [10.0, 50.0, 50.0, 51.0, 52.0, 53.0]
    samples = [
        {"at_s": 60.0 * at, "memory_mib_of": {"node": mib, "temporal": 7.0}}
        for at, mib in enumerate(grows)
    ]
    found = slopes(samples, "memory_mib_of")
    assert found == {"node": pytest.approx(60.0), "temporal": pytest.approx(0.0)}
    assert slopes(samples[:3], "memory_mib_of") == {"node": None, "temporal": None}
