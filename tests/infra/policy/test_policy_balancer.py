"""Which engine comes first."""

import pytest

from infra.policy.engines import balancer
from infra.policy.engines.balancer import Balancer


def test_least_in_flight_first_for_new_keys() -> None:
    balance = Balancer(["a", "b"])
    with balance.sending("a", "k1"):
        assert balance.candidates("new") == ["b", "a"]
        with balance.sending("b", "k2"), balance.sending("b", "k3"):
            assert balance.candidates("new") == ["a", "b"]
    assert balance.candidates("new") == ["a", "b"]


def test_a_key_keeps_its_engine_under_load() -> None:
    balance = Balancer(["a", "b"])
    with balance.sending("b", "mine"), balance.sending("b", "other"):
        assert balance.candidates("mine") == ["b", "a"]


def test_an_engine_that_did_not_answer_comes_last_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    balance = Balancer(["a", "b"])
    with balance.sending("a", "mine"):
        pass
    balance.did_not_answer("a")
    assert balance.candidates("mine") == ["b", "a"]
    assert balance.candidates("new") == ["b", "a"]
    now = balancer.time.monotonic()
    monkeypatch.setattr(balancer.time, "monotonic", lambda: now + balancer.COOL_DOWN_S + 1)
    assert balance.candidates("mine") == ["a", "b"]


def test_oldest_keys_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "MAX_STICKY_KEYS", 2)
    balance = Balancer(["a", "b"])
    for key in ("one", "two", "one", "three"):
        with balance.sending("b", key):
            pass
    assert balance.candidates("one") == balance.candidates("three") == ["b", "a"]
    assert balance.candidates("two") == ["a", "b"]
