"""`mainspring bench train` in a process of its own, as it sets torch's environment."""

import asyncio
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cli.main import app
from mainspring.errors import UsageError


@pytest.mark.long
def test_a_batch_reaches_a_rank_from_the_store() -> None:
    """A small one. The bench compares what the rank sees with what was read."""
    from cli.bench.bench_large_batch import measure

    figures = asyncio.run(measure(lambda line: None, num_sequences=16, tokens_each=3000))
    assert figures.keys() == {
        *("num_sequences", "tokens_each", "read_s", "hand_out_s"),
        *("max_loop_block_s", "driver_peak_gib"),
    }
    assert all(value > 0 for value in figures.values())


@pytest.mark.long
@pytest.mark.parametrize("beside", [None, "plain"])
def test_all_sides_compute_the_same_loss_and_are_timed(beside: str | None) -> None:
    command = [sys.executable, "-m", "mainspring", "bench", "train", "--steps", "1", "--json"]
    command += ["--engine", "fsdp"] if beside else []
    command += ["--beside", beside] if beside else []
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert (figures["engine"], figures.get("beside")) == ("fsdp" if beside else "plain", beside)
    for shape in ("equal_lengths", "mixed_lengths"):
        row = figures[shape]
        assert abs(row["ratio"] - row["tokens_per_s"] / row["hf_tokens_per_s"]) < 0.01
        assert row["tokens_per_s"] > 10
        if beside:
            of_two = row["tokens_per_s"] / row["beside_tokens_per_s"]
            assert abs(row["beside_ratio"] - of_two) < 0.01
    assert figures["files"].keys() == {"checkpoint_s_per_gb", "export_s_per_gb"}


def test_an_engine_is_not_measured_beside_itself() -> None:
    command = ["bench", "train", "--engine", "fsdp", "--beside", "fsdp"]
    with pytest.raises(UsageError, match="--beside fsdp is the engine that --engine names"):
        CliRunner().invoke(app, command, catch_exceptions=False)
