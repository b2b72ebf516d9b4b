"""Findings of `mainspring doctor` that follow from what is stored."""

import pytest

from cli.operations.checks.machine_checks import connections_finding, polls_finding
from infra.db.connect import Connections


@pytest.mark.parametrize(("num_nodes", "ok"), [(1, True), (25, True), (26, False), (100, False)])
def test_nodes_are_compared_with_what_a_temporal_server_allows(num_nodes: int, ok: bool) -> None:
    found = polls_finding(num_nodes)
    assert (found.ok, found.required) == (ok, False)
    assert f"{num_nodes} nodes keep {3 * num_nodes} polls open" in found.found
    assert (f"frontend.namespaceCount to {48 * num_nodes}" in found.found) is not ok


@pytest.mark.parametrize(("ours", "ok"), [(239, True), (278, False)])
def test_pools_are_compared_with_what_the_database_allows(ours: int, ok: bool) -> None:
    found = connections_finding(Connections(allowed=297, num_processes=100, ours=ours, others=20))
    assert (found.ok, found.required) == (ok, False)
    assert f"100 processes may open {ours} connections, others have 20 open" in found.found
    assert ("raise max_connections by 1 or more" in found.found) is not ok
