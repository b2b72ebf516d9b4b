"""`mainspring bench nodes` with few nodes."""

import asyncio

import pytest

from cli.bench import bench_nodes


def test_every_node_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_nodes, "NUM_ROUNDS", 2)
    monkeypatch.setattr(bench_nodes, "BETWEEN_S", 0.5)
    found = asyncio.run(bench_nodes.measure(lambda line: None, num_nodes=5))
    assert found.keys() == {
        *("nodes", "polls", "refused", "starts", "taken_for_dead"),
        *("start_p50_s", "start_p99_s", "start_max_s"),
    }
    counts = [found[name] for name in ("nodes", "refused", "starts", "taken_for_dead")]
    assert counts == [5, 0, 5 * 2 * 2, 0]
    assert 0 < found["start_p50_s"] <= found["start_p99_s"] <= found["start_max_s"]
