"""`mainspring bench replies` with short replies, through both kinds of streams."""

import asyncio

import pytest

from cli.bench.bench_replies import measure


@pytest.mark.parametrize("repeated", [False, True])
def test_each_token_is_written_once_and_little_is_lost(repeated: bool) -> None:
    figures = asyncio.run(measure(lambda line: None, repeated=repeated, lengths=(256, 640)))
    assert figures.keys() == {"256", "640"}
    for length, row in figures.items():
        assert row.keys() == {
            *("wal_ratio", "wal_parts_bytes", "wal_final_bytes", "num_rows"),
            *("lost_at_kill_tokens", "read_cpu_ms"),
        }
        assert 32 <= row["lost_at_kill_tokens"] <= 3 * 32
        # Written whole at each of its parts, the longer one took nine times its bytes.
        assert row["wal_ratio"] < 5
        assert 5 <= row["num_rows"] <= int(length) / 32
