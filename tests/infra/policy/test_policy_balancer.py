"""Which engine comes first."""

from collections import Counter

import pytest

from infra.policy.engines import balancer
from infra.policy.engines.balancer import FAR_MORE, SPARE_REQUESTS, Balancer, EngineMember

AB = [EngineMember.at("a"), EngineMember.at("b")]


def members(count: int, **fields: object) -> list[EngineMember]:
    return [EngineMember(f"gpu{n}", f"http://{n}", **fields) for n in range(count)]  # type: ignore[arg-type]


def test_least_in_flight_first_for_new_keys() -> None:
    balance = Balancer(AB)
    with balance.sending("a", "k1"):
        assert balance.candidates("new") == ["b", "a"]
        with balance.sending("b", "k2"), balance.sending("b", "k3"):
            assert balance.candidates("new") == ["a", "b"]


def test_a_key_keeps_its_engine_under_load() -> None:
    balance = Balancer(AB)
    with balance.sending("b", "mine"), balance.sending("b", "other"):
        assert balance.candidates("mine") == ["b", "a"]


def test_the_engine_that_has_the_prefix_comes_first_in_every_process() -> None:
    fleet = members(4)
    for home in fleet:
        assert Balancer(fleet).candidates("rollout", home.name)[0] == home.url
    moved = [*fleet[:3], EngineMember("gpu3", "http://elsewhere")]
    assert Balancer(moved).candidates("rollout", "gpu3")[0] == "http://elsewhere"


def test_processes_that_do_not_talk_choose_alike() -> None:
    fleet = members(5)
    for key in map(str, range(100)):
        ones = {Balancer(fleet).candidates(key)[0], Balancer(fleet[::-1]).candidates(key)[0]}
        assert len(ones) == 1


def test_a_member_that_joins_moves_no_key_between_the_others() -> None:
    fleet = members(5)
    for key in map(str, range(200)):
        before = Balancer(fleet[:4]).candidates(key)[0]
        assert Balancer(fleet).candidates(key)[0] in (before, fleet[4].url)


def test_new_keys_are_spread_evenly() -> None:
    balance = Balancer(members(4))
    sent: Counter[str] = Counter()
    open_requests = []
    for key in map(str, range(64)):
        url = balance.candidates(key)[0]
        request = balance.sending(url, key)
        request.__enter__()
        open_requests.append(request)
        sent[url] += 1
    assert max(sent.values()) / min(sent.values()) < 1.5
    for request in open_requests:
        request.__exit__(None, None, None)


def test_a_prefix_is_left_where_far_more_requests_wait() -> None:
    least = 3
    for load, stays in ((least * FAR_MORE + SPARE_REQUESTS, True), (least * 4 + 40, False)):
        fleet = [
            EngineMember("home", "h", int(load)),
            EngineMember("b", "b", least),
            EngineMember("c", "c", least),
        ]
        assert (Balancer(fleet).candidates("k", "home")[0] == "h") is stays


def test_loads_of_all_processes_count_with_what_this_one_sent_since() -> None:
    balance = Balancer([EngineMember("a", "a", 10), EngineMember("b", "b", 11)])
    assert balance.candidates("k")[0] == "a"
    with balance.sending("a", "1"), balance.sending("a", "2"):
        assert balance.candidates("k")[0] == "b"
        balance.use([EngineMember("a", "a", 12), EngineMember("b", "b", 13)])
        assert balance.candidates("k")[0] == "a", "those two are in the 12"


def test_an_engine_that_drains_gets_nothing_and_a_lost_one_comes_last() -> None:
    fleet = [
        EngineMember("a", "a", is_draining=True),
        EngineMember("b", "b", is_lost=True),
        EngineMember("c", "c"),
    ]
    balance = Balancer(fleet)
    assert balance.candidates("k", "a") == balance.candidates("k", "b") == ["c", "b"]
    balance.use([EngineMember("a", "a", is_draining=True)])
    assert balance.candidates("k") == []


def test_an_engine_that_did_not_answer_comes_last_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    balance = Balancer(AB)
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
    balance = Balancer(AB)
    first = {key: balance.candidates(key)[0] for key in ("one", "two", "three")}
    other = {key: "b" if url == "a" else "a" for key, url in first.items()}
    for key in ("one", "two", "one", "three"):
        with balance.sending(other[key], key):
            pass
    assert balance.candidates("one")[0] == other["one"]
    assert balance.candidates("three")[0] == other["three"]
    assert balance.candidates("two")[0] == first["two"]
