"""Who may not take sessions: a sandbox's connection, whatever key it sends, and wrong keys."""

import json

import httpx
import pytest
from raw_client import connected, post
from scripted_answers import KEY, Script

from gateway.app import make_app
from gateway.connection import preamble
from gateway.server import serve
from gateway.sessions.session_desk import SessionDesk
from gateway.sessions.wrong_keys import MAX_WRONG, WrongKeys
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.programs import campaign_keys, program_lives, session_offers, sessions
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.config.agents.agent import AgentConfig
from mainspring.ids import CampaignId, RolloutId
from tests.infra.db.store_records import RUN, add_group, config, task

CAMPAIGN = CampaignId("first")


@pytest.fixture
def desk(db: Database, monkeypatch: pytest.MonkeyPatch) -> SessionDesk:
    """On a store without workflows: nothing is told."""

    async def tell(*about: object) -> bool:
        return True

    monkeypatch.setattr(SessionDesk, "_tell", tell)
    return SessionDesk(db, None, FactCache(db))  # pyright: ignore[reportArgumentType]


async def offered(db: Database, number: int = 1) -> list[RolloutId]:
    agent = AgentConfig(kind="remote")
    await tasks.put_tasks(db, [task(0)])
    await campaigns.create(db, config().model_copy(update={"agent": agent}))
    _, ids = await add_group(db, size=number)
    for each in ids:
        claim = await rollouts.claim(db, each, RUN)
        await session_offers.offer(db, each, claim.epoch, 0, CAMPAIGN)
    return ids


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_sandbox_finds_no_route_of_sessions(db: Database, desk: SessionDesk) -> None:
    [rollout] = await offered(db)
    key = await campaign_keys.make(db, CAMPAIGN)
    own = await program_lives.begin(db, rollout, 0, 0)
    assert key is not None
    ident = (await sessions.read(db, rollout, 0, 0)).id
    attacks = [
        ("/sessions", {}),
        ("/s/" + key + "/sessions", {}),
        (f"/sessions?key={key}", {}),
        (f"/sessions/{ident}/finish", {"reward": 1.0}),
        (f"/sessions/{ident}/finish", {"patch": "x"}),
        (f"/sessions/{ident}/heartbeat", {}),
        ("//sessions", {}),
        ("/v1/../sessions", {}),
    ]
    async with serve(make_app(Script(), desk)) as address:
        for path, body in attacks:
            for sent in (key, own, KEY):
                async with connected(address) as raw:
                    await raw.send(preamble(KEY) + post(path, body, bearer(sent)))
                    status, told = await raw.answer()
                    assert status == 404 and b"no such route" in told, (path, sent, told)
        # A second line with the key of nothing that is bound.
        async with connected(address) as raw:
            await raw.send(preamble(KEY) + preamble(own) + post("/sessions", {}, bearer(key)))
            assert b"200" not in (await raw.rest())[:15]
        async with connected(address) as raw:
            await raw.send(post("/sessions", {}, bearer(key)))
            assert (await raw.answer())[0] == 200  # from outside it is there
    assert (await rollouts.get(db, rollout)).verdict is None


async def test_a_key_opens_its_own_session_alone(db: Database, desk: SessionDesk) -> None:
    await offered(db, 2)
    key = await campaign_keys.make(db, CAMPAIGN)
    assert key is not None
    transport = httpx.ASGITransport(make_app(Script(), desk))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        one, two = [(await client.post("/sessions", headers=bearer(key))).json() for _ in range(2)]
        for wrong in (two["key"], key, one["key"][:-1], one["key"] + "x", "mss_", "\xff"):
            headers = {b"authorization": f"Bearer {wrong}".encode("latin-1")}
            for method, path in (("GET", ""), ("POST", "/finish"), ("DELETE", "")):
                url = f"/sessions/{one['id']}{path}"
                answer = await client.request(method, url, headers=headers)
                assert answer.status_code == 401, (wrong, method, answer.text)
        for headers in (bearer(one["key"]), bearer(f"{key}x")):
            assert (await client.post("/sessions", headers=headers)).status_code == 401
        assert (await client.post("/sessions")).json()["error"]["kind"] == "no_key"
        assert (await client.put("/sessions", headers=bearer(key))).status_code == 405
        headers = bearer(one["key"])
        assert (await client.get("/sessions/none", headers=headers)).status_code == 401
        assert (await client.get(f"/sessions/{one['id']}", headers=headers)).status_code == 200
        # Revoked: nothing is taken with it; what was taken stays.
        assert await campaign_keys.revoke(db, CAMPAIGN)
        assert (await client.post("/sessions", headers=bearer(key))).status_code == 401
        assert (await client.get(f"/sessions/{one['id']}", headers=headers)).status_code == 200


async def test_what_is_stored_opens_nothing(db: Database, desk: SessionDesk) -> None:
    """Digests are no keys."""
    [rollout] = await offered(db)
    key = await campaign_keys.make(db, CAMPAIGN)
    assert key is not None
    transport = httpx.ASGITransport(make_app(Script(), desk))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        session = (await client.post("/sessions", headers=bearer(key))).json()
        for digest in (program_lives.digest(key), program_lives.digest(session["key"])):
            assert (await client.post("/sessions", headers=bearer(digest))).status_code == 401
            url = f"/sessions/{session['id']}"
            assert (await client.get(url, headers=bearer(digest))).status_code == 401
    assert session["rollout"] == rollout


async def test_wrong_keys_are_not_looked_up_without_end(
    db: Database, desk: SessionDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await offered(db, 2)
    key = await campaign_keys.make(db, CAMPAIGN)
    assert key is not None
    transport = httpx.ASGITransport(make_app(Script(), desk))
    looked_up: list[str] = []
    look = desk.campaign_of

    async def campaign_of(sent: str) -> CampaignId | None:
        looked_up.append(sent)
        return await look(sent)

    monkeypatch.setattr(desk, "campaign_of", campaign_of)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        assert (await client.post("/sessions", headers=bearer(key))).status_code == 200
        found = [
            (await client.post("/sessions", headers=bearer(f"wrong-{n}"))).status_code
            for n in range(MAX_WRONG + 5)
        ]
        assert found == [401] * MAX_WRONG + [429] * 5
        assert len(looked_up) == MAX_WRONG + 1
        # A key that was right before is not shut out with them.
        assert (await client.post("/sessions", headers=bearer(key))).status_code == 200


def test_wrong_keys_of_many_addresses_take_bounded_memory() -> None:
    wrong = WrongKeys(max_wrong=1)
    for n in range(10_000):
        wrong.was_wrong(f"10.0.{n // 256}.{n % 256}")
        wrong.was_right(f"key-{n}")
    assert len(wrong._wrong) == len(wrong._digests) == 4096  # pyright: ignore[reportPrivateUsage]
    assert wrong.blocked_s("10.0.39.15", "another") > 0
    assert wrong.blocked_s("10.0.39.15", "key-9999") == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"{" * 10_000,
        b'{"patch": NaN}',
        b'{"patch": {"a": 1}}',
        b'{"reward": 1e999}',
        b'{"reward": ' + b"9" * 5000 + b"}",
        b'{"error": 1}',
        b'{"patch": "a", "reward": 1}',
        json.dumps({"a": [[]] * 1000}).encode(),
    ],
)
async def test_bodies_that_are_no_result_are_refused_with_a_sentence(
    db: Database, desk: SessionDesk, body: bytes
) -> None:
    [rollout] = await offered(db)
    key = await campaign_keys.make(db, CAMPAIGN)
    assert key is not None
    transport = httpx.ASGITransport(make_app(Script(), desk))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        session = (await client.post("/sessions", headers=bearer(key))).json()
        url = f"/sessions/{session['id']}/finish"
        answer = await client.post(url, headers=bearer(session["key"]), content=body)
        assert answer.status_code in (400, 403), answer.text
        assert answer.json()["error"].keys() == {"kind", "message", "remedy"}
    assert (await sessions.read(db, rollout, 0, 0)).ending is None


async def test_hosts_that_are_none_are_refused(db: Database, desk: SessionDesk) -> None:
    await offered(db)
    key = await campaign_keys.make(db, CAMPAIGN)
    assert key is not None
    transport = httpx.ASGITransport(make_app(Script(), desk))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for host in ("", "a b", "x/../y", "<script>", "a" * 256):
            headers = {**bearer(key), "host": host}
            assert (await client.post("/sessions", headers=headers)).status_code == 400
        for token in ("", "a b", "x" * 201):
            headers = {**bearer(key), "idempotency-key": token}
            assert (await client.post("/sessions", headers=headers)).status_code == 400
        answer = await client.post("/sessions", headers={**bearer(key), "host": "gw.example:8443"})
        assert answer.json()["base_urls"]["openai"] == "http://gw.example:8443/v1"
