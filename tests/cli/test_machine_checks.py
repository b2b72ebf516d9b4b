"""Findings of `mainspring doctor` that follow from what is stored."""

import pytest

from cli.operations.checks.machine_checks import polls_finding


@pytest.mark.parametrize(("num_nodes", "ok"), [(1, True), (25, True), (26, False), (100, False)])
def test_nodes_are_compared_with_what_a_temporal_server_allows(num_nodes: int, ok: bool) -> None:
    found = polls_finding(num_nodes)
    assert (found.ok, found.required) == (ok, False)
    assert f"{num_nodes} nodes keep {3 * num_nodes} polls open" in found.found
    assert (f"frontend.namespaceCount to {48 * num_nodes}" in found.found) is not ok
