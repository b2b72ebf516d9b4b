"""Every error that an activity can raise has a rule, and every rule has an end."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from temporalio.exceptions import ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

import activities
import infra
import mainspring
import node
from infra.policy.replies.endpoint_errors import EndpointBusy
from infra.temporal.faults import NodeFull, failure, kind_of
from mainspring.errors import DatabaseError, MainspringError
from mainspring.status import FaultKind
from mainspring.status.fates import OUTAGE_S, RULES, Fate

BUGS = {
    *("MainspringError", "ServiceError", "WorkFailed", "UnknownId", "StepOutOfOrder"),
    "RankFailed",
}
"""Of those that activities can raise, the only ones that stand for a bug (or for no activity)."""


def subclasses(of: type[MainspringError]) -> Iterator[type[MainspringError]]:
    yield of
    for each in of.__subclasses__():
        yield from subclasses(each)


def all_errors() -> set[type[MainspringError]]:
    for package in (mainspring, infra, node, activities):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    return {
        each
        for each in subclasses(MainspringError)
        if each.__module__.partition(".")[0] in ("mainspring", "infra", "node", "activities")
    }


def test_every_error_names_its_fault() -> None:
    unnamed = {each.__name__ for each in all_errors() if each.fault is FaultKind.UNEXPECTED}
    assert unnamed == BUGS


@pytest.mark.parametrize("kind", list(FaultKind))
def test_every_fault_has_one_fate_and_a_bound(kind: FaultKind) -> None:
    rule = RULES[kind]
    assert rule.is_final(1000, 2 * OUTAGE_S) and rule.remedy
    assert rule.fate is not Fate.END or rule.is_final(1, 0.0)


def test_what_temporal_is_told() -> None:
    said = failure(DatabaseError("it is away", remedy="start it"), attempt=9, waited_s=60.0)
    assert (said.type, said.non_retryable) == ("DatabaseUnreachable", False)
    assert said.message == "it is away\n  start it" and said.next_retry_delay is None
    assert failure(DatabaseError("away"), attempt=1, waited_s=OUTAGE_S).non_retryable

    bug = failure(KeyError("x"), attempt=5, waited_s=60.0)
    assert (bug.type, bug.non_retryable) == ("Unexpected", True)
    assert "KeyError: 'x'" in bug.message and RULES[FaultKind.UNEXPECTED].remedy in bug.message
    assert not failure(KeyError("x"), attempt=50, waited_s=1.0).non_retryable
    assert not failure(KeyError("x"), attempt=5, waited_s=60.0, is_cancelled=True).non_retryable

    busy = failure(EndpointBusy("later", 4.0), attempt=1, waited_s=0.0)
    assert busy.next_retry_delay is not None and 4.0 <= busy.next_retry_delay.total_seconds() <= 5.0
    assert busy.category is ApplicationErrorCategory.BENIGN
    full = failure(NodeFull("full"), attempt=1, waited_s=0.0)
    assert full.next_retry_delay is not None and full.next_retry_delay.total_seconds() < 1.0
    away = RPCError("no connection", RPCStatusCode.UNAVAILABLE, b"")
    assert kind_of(away) is FaultKind.TEMPORAL_UNREACHABLE
