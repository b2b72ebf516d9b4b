"""`mainspring bench gateway` with few sessions and calls: figures of all of them, nothing left."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.bench.bench_gateway import read_numbers
from cli.main import app
from mainspring.errors import UsageError


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the bench makes its home: below a folder that `nobody` may pass."""
    folder = Path(tempfile.mkdtemp(prefix="mainspring-gateway-"))
    folder.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    folder.rmdir()


def test_figures_of_a_few_sessions(scratch: Path) -> None:
    arguments = ["--sessions", "1,2", "--calls", "3", "--prompt-tokens", "50,400", "--json"]
    ended = CliRunner().invoke(app, ["bench", "gateway", *arguments])
    assert ended.exit_code == 0, ended.output
    figures = json.loads(ended.stdout)
    assert list(figures) == ["1", "2"]
    by_size = figures["1"].pop("by_prompt_tokens")
    assert list(by_size) == ["50", "400"]
    for row in (*figures.values(), *by_size.values()):
        assert row["num_calls"] == 3 and row["requests_per_s"] > 0
        assert 0 < row["overhead_p50_ms"] <= row["overhead_p99_ms"]
        assert 0 <= row["engine_p50_ms"] < row["overhead_p50_ms"]
        assert row["first_calls_p50_ms"] == row["last_calls_p50_ms"]
        assert set(row["kib_per_session_of"]) == {"gateway", "rollout_worker"}
        assert row["cpu_ms_per_call_of"]["temporal"] > 0
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("numbers", ["0", "many", "32,1", "1,,2", "9999"])
def test_sessions_that_cannot_be_measured(numbers: str) -> None:
    with pytest.raises(UsageError, match="--sessions") as refused:
        read_numbers("--sessions", numbers, 1000)
    assert refused.value.exit_code == 2
