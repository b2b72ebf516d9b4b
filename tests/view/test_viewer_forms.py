"""Forms of the viewer's actions: who may send one, what it must have, and that it works once."""

import asyncio
from pathlib import Path

import httpx
import pytest
from asking import Form, ask, do, outcome, send, told
from store_records import CAMPAIGN, add_ready_group, begin_campaign
from viewed import home_of, viewer_of, wrong_in

from cli.operations.acts.offered import all_actions
from infra.db.database import Database
from infra.db.rollouts import labels
from infra.db.runs import events
from mainspring.ids import RolloutId
from view.actions import acts
from view.actions.form_token import FormRefused, FormTokens
from view.actions.protocol import Action, ActRequest, Preview

FIRST = RolloutId("first/g000000/000")
LABEL = f"/do/label?of={FIRST}"


async def label_names(db: Database) -> list[str]:
    async with db.transaction() as connection:
        return (await labels.of_rollout(connection, FIRST)).names(0)


@pytest.fixture
async def home(db: Database, store_url: str, tmp_path: Path) -> Path:
    await begin_campaign(db)
    await add_ready_group(db, 0)
    return home_of(tmp_path, store_url)


async def test_a_form_does_its_work_once_however_often_it_is_sent(db: Database, home: Path) -> None:
    async with viewer_of(home, actions=all_actions(home)) as client:
        form = await ask(client, LABEL)
        answers = await asyncio.gather(*(send(client, form, add="good") for _ in range(3)))
        places = {answer.headers["location"] for answer in answers}
        assert {answer.status_code for answer in answers} == {303} and len(places) == 1
        assert f"{FIRST}: good added" in await outcome(client, answers[0])
        # Also with other values: the form of one page asks for one thing.
        again = await send(client, form, add="bad")
        assert again.headers["location"] in places
    assert await label_names(db) == ["good"]
    [event] = [each for each in await events.newest(db, CAMPAIGN) if each.kind == "command"]
    assert event.text == f"rollout label: {FIRST}: good added"
    assert event.by.startswith("viewer of ") and "token" not in event.by


async def test_a_form_sent_twice_is_answered_by_what_it_did_once(
    db: Database, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with viewer_of(home, actions=all_actions(home)) as client:
        form = await ask(client, LABEL)
        preview, waits = acts.Acts.preview, iter([0.0, 1.0])

        # The second one's look comes after all that the first one did.
        async def late(self: acts.Acts, action: Action, asked: ActRequest) -> Preview:
            await asyncio.sleep(next(waits))
            return await preview(self, action, asked)

        monkeypatch.setattr(acts.Acts, "preview", late)
        first, second = await asyncio.gather(*(send(client, form, add="good") for _ in range(2)))
        assert (first.status_code, second.status_code) == (303, 303)
        assert first.headers["location"] == second.headers["location"]
    assert await label_names(db) == ["good"]


async def test_a_form_works_once_also_when_its_result_is_forgotten(
    db: Database, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acts, "MAX_KEPT", 1)
    async with viewer_of(home, actions=all_actions(home)) as client:
        first = await ask(client, LABEL)
        place = (await send(client, first, add="good")).headers["location"]
        for name in ("odd", "long"):
            await do(client, LABEL, add=name)
        await do(client, LABEL, remove="good")
        assert (await client.get(place)).status_code == 404
        # All that it rests on is true again.
        fields = (await ask(client, LABEL)).fields
        late = await send(client, first, add="good", seen=fields["seen"])
        assert late.status_code == 409 and "was answered before" in late.text
    assert await label_names(db) == ["long", "odd"]


async def test_two_who_were_shown_the_same_do_not_overwrite_each_other(
    db: Database, home: Path
) -> None:
    async with (
        viewer_of(home, actions=all_actions(home)) as one,
        httpx.AsyncClient(transport=one._transport, base_url=one.base_url) as other,
    ):
        forms = await ask(one, LABEL), await ask(other, LABEL)
        answers = await asyncio.gather(
            send(one, forms[0], note="mine"), send(other, forms[1], note="another's")
        )
        words = [
            await outcome(client, answer)
            for client, answer in zip((one, other), answers, strict=True)
        ]
    assert sum("note " in each for each in words) >= 1
    assert sum("has changed since you were asked" in each for each in words) == 1


async def test_without_actions_nothing_is_offered_and_no_form_is_answered(
    db: Database, home: Path
) -> None:
    async with viewer_of(home) as client:
        for page in ("/", "/c/first", f"/r/{FIRST}", "/c/first/rollouts", "/nodes"):
            assert "/do/" not in (await client.get(page)).text
        missing = await client.get(LABEL)
        assert missing.status_code == 404 and "mainspring view --actions" in missing.text
        for path in ("/do/label", "/do/nothing", f"/r/{FIRST}"):
            assert (await client.post(path, data={"of": FIRST})).status_code == 405
    assert await label_names(db) == []


async def test_forms_of_elsewhere_are_refused(db: Database, home: Path) -> None:
    async with viewer_of(home, actions=all_actions(home), hosts=("box.example",)) as client:
        form = await ask(client, LABEL)
        sent = form.fields | {"add": "good"}
        for origin in (
            "http://evil.example",
            "null",
            "http://127.0.0.1:9999",
            "http://127.0.0.1",
            "file://127.0.0.1:8600",
            "http://[broken",
        ):
            answer = await client.post(form.action, data=sent, headers={"origin": origin})
            assert answer.status_code == 403 and "nothing was done" in answer.text, origin
        for other in ("evil.example", "127.0.0.1.evil.example"):
            answer = await client.post(form.action, data=sent, headers={"host": other})
            assert answer.status_code == 421
        for site in ("cross-site", "same-site"):
            headers = {"sec-fetch-site": site}
            answer = await client.post(form.action, data=sent, headers=headers)
            assert answer.status_code == 403 and "from another site" in answer.text
            answer = await client.get(LABEL, headers=headers)
            assert answer.status_code == 403 and "set-cookie" not in answer.headers
        assert await label_names(db) == []
        # A proxy that is named with --allow-host gives the page under its own name.
        proxied = {"origin": "https://box.example"}
        answer = await client.post(form.action, data=sent, headers=proxied)
        assert answer.status_code == 303
    assert await label_names(db) == ["good"]


async def test_a_token_that_is_not_of_this_form_is_refused(db: Database, home: Path) -> None:
    actions = all_actions(home)
    async with viewer_of(home, actions=actions) as client, viewer_of(home, actions=actions) as new:
        form = await ask(client, LABEL)
        good = form.fields["token"]
        number, at, mac = good.split(".")
        of_other = (await ask(client, "/do/label?of=first/g000000/001")).fields["token"]
        of_action = (await ask(client, f"/do/cancel?of={CAMPAIGN}")).fields["token"]
        wrong = ("", "x", f"{number}.{at}.{'0' * 64}", f"{number}.{int(at) + 1}.{mac}")
        for token in (*wrong, f"{'0' * 32}.{at}.{mac}", of_other, of_action, good * 50):
            answer = await send(client, form, add="good", token=token)
            assert answer.status_code == 403 and "Nothing was done" in answer.text, token
            assert "open the page of the action again" in answer.text
            assert wrong_in(answer.text) == []
        without = dict(client.cookies)
        client.cookies.clear()
        assert (await send(client, form, add="good")).status_code == 403
        # Of a viewer that was started again, and of another browser.
        new.cookies.update(without)
        assert (await send(new, form, add="good")).status_code == 403
    assert await label_names(db) == []


def test_a_token_ends_after_half_a_day() -> None:
    clock = [1_000_000.0]
    tokens = FormTokens(lambda: clock[0])
    session = tokens.session(None)
    assert tokens.session(session) == session != tokens.session("../x")
    token = tokens.new(session, "label", "a")
    clock[0] += 12 * 3600
    assert tokens.check(token, session, "label", "a")
    clock[0] += 1
    with pytest.raises(FormRefused, match="older than 12 hours"):
        tokens.check(token, session, "label", "a")


async def test_what_no_page_sends_is_refused(db: Database, home: Path) -> None:
    async with viewer_of(home, actions=all_actions(home)) as client:
        form = await ask(client, LABEL)
        large = await send(client, form, note="x" * 1_000_000)
        assert large.status_code == 413 and "more than 64 KB" in large.text
        long = await send(client, form, note="x" * 5000)
        assert long.status_code == 409 and "may have 4,000" in long.text
        many = {f"f{n}": "x" for n in range(100)}
        assert (await send(client, form, **many)).status_code == 403
        nul = await send(client, form, note="a\0b")
        assert nul.status_code == 403 and "NUL" in nul.text
        as_json = await client.post(form.action, json=form.fields)
        assert as_json.status_code == 403 and "application/json" in as_json.text
        body = "&".join(f"{name}={text}" for name, text in form.fields.items()).encode()
        kind = {"content-type": "application/x-www-form-urlencoded"}
        bad = await client.post(form.action, content=body + b"&add=\xff%ff", headers=kind)
        assert bad.status_code == 403 and "cannot be read" in bad.text
        unknown = await client.post("/do/destroy", data=form.fields)
        assert unknown.status_code == 404 and "no action destroy" in unknown.text
        for method in ("PUT", "DELETE", "PATCH"):
            assert (await client.request(method, "/do/label")).status_code == 405
        assert (await client.post(f"/r/{FIRST}")).status_code == 405
        for address, status, words in (
            ("/do/destroy?of=x", 404, "no action destroy"),
            ("/do/label", 400, "does not tell what the action is for"),
            ("/do/label?of=first/g000000/009", 404, "no rollout first/g000000/009"),
            ("/done/0123", 404, "does not know what was asked"),
        ):
            answer = await client.get(address)
            assert answer.status_code == status and words in answer.text, address
    assert await label_names(db) == []


async def test_readers_who_need_a_token_need_it_for_forms_too(db: Database, home: Path) -> None:
    secret = "a-token-of-many-letters"
    async with viewer_of(home, actions=all_actions(home), token=secret) as client:
        assert (await client.get(LABEL)).status_code == 401
        assert (await client.post("/do/label", data={"of": FIRST})).status_code == 401
        answer = await client.post("/login", data={"token": secret})
        assert answer.status_code == 303
        assert "good added" in await do(client, LABEL, add="good")
    [event] = [each for each in await events.newest(db, CAMPAIGN) if each.kind == "command"]
    assert event.by.startswith("viewer of ") and event.by.endswith(", with its token")


async def test_a_form_is_drawn_as_text_and_tells_its_command(db: Database, home: Path) -> None:
    hostile = "</textarea><script>alert(1)</script> \u202e & \"'\nsecond line"
    async with viewer_of(home, actions=all_actions(home)) as client:
        page = await client.get(LABEL)
        cookie = page.headers["set-cookie"].lower()
        assert "samesite=strict" in cookie and "httponly" in cookie and "path=/do/" in cookie
        assert page.headers["referrer-policy"] == "same-origin"
        assert f"mainspring rollout label {FIRST}" in told(page.text)
        form = Form(page.text)
        assert form.method == "post" and form.visible == ["add", "remove", "note"]
        done = await client.get((await send(client, form, note=hostile)).headers["location"])
        assert wrong_in(done.text) == [] and "rollout label" not in done.url.path
        again = await client.get(LABEL)
        assert wrong_in(again.text) == []
        # What is not changed stays as it is, to the letter.
        kept = Form(again.text)
        assert kept.fields["note"] == hostile
        assert "nothing was to be changed" in await outcome(client, await send(client, kept))
        assert wrong_in((await client.get(f"/r/{FIRST}")).text) == []
