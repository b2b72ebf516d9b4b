"""`mainspring bench train` in a process of its own, as it sets torch's environment."""

import json
import subprocess
import sys

import pytest


@pytest.mark.long
def test_both_sides_compute_the_same_loss_and_are_timed() -> None:
    command = [sys.executable, "-m", "mainspring", "bench", "train", "--steps", "1", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    for shape in ("equal_lengths", "mixed_lengths"):
        row = figures[shape]
        assert abs(row["ratio"] - row["tokens_per_s"] / row["hf_tokens_per_s"]) < 0.01
        assert row["tokens_per_s"] > 10
    assert figures["files"].keys() == {"checkpoint_s_per_gb", "export_s_per_gb"}
