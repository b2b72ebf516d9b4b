"""Pages of the viewer show the rows of the store, in parts and in order, in each state."""

import re
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from store_records import CAMPAIGN, RUN, add_group, add_ready_group, begin_campaign, call
from viewed import Told, add_evaluation, home_of, links_of, play, reply_of, viewer_of

from infra.db.connect import reading_database
from infra.db.database import Database
from infra.db.programs import model_requests, program_lives
from infra.db.rollouts import labels, rollouts, turns
from infra.db.rollouts.labels import MarkChange
from infra.db.runs import events
from infra.db.runs.events import Event
from infra.db.training import steps
from mainspring.config.settings import load_settings
from mainspring.ids import RolloutId
from mainspring.programs.matching import key_of
from mainspring.programs.record import BranchKind
from mainspring.programs.request import ChatMessage, Dialect, ModelRequest, Role
from mainspring.status import EventKind, Verdict
from mainspring.trajectories.turns import Call, VersionSpan

FIRST = "/r/first/g000000/000"


async def test_a_long_rollout_is_shown_by_twenty_turns(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, Told(), num_turns=45)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        shown: list[int] = []
        address: str | None = FIRST
        while address:
            page = (await client.get(f"{address}")).text
            shown += map(int, re.findall(r'<article id="t(\d+)"', page))
            following = [link for link in links_of(page) if "?from=" in link and "#" not in link]
            later = [each for each in following if int(each.split("=")[1]) > shown[-1]]
            address = later[0] if later else None
        assert shown == list(range(1, 46))
        document = (await client.get(f"{FIRST}.json")).json()
    assert len(document["rail"]) == 45 and len(document["turns"]) == 20
    assert [line["call"]["returncode"] for line in document["rail"][:4]] == [0, 1, 0, 1]


async def test_branches_and_replies_without_a_command_are_told(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    claim = await rollouts.claim(db, rollout, RUN)
    first = reply_of(0, "no block here", None, 0)
    for reply in (
        first,
        reply_of(1, "still none", 0, first.end),
        reply_of(2, "from the first again", 0, first.end),
        reply_of(3, "anew", None, 0),
    ):
        await turns.put_call(db, rollout, claim.epoch, reply)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        page = (await client.get(FIRST)).text
        document = (await client.get(f"{FIRST}.json")).json()
        # Of a page that begins later, the reason follows from the turns before it.
        later = (await client.get(f"{FIRST}.json?from=4")).json()["turns"]
    assert [line["leaves"] for line in document["rail"]] == [None, None, 1, None]
    assert [line["starts"] for line in document["rail"]] == [False, False, False, True]
    assert "continues turn 1" in page and "begins a branch" in page
    assert page.count("Not run.") == 4 and 'data-refresh-s="3"' in page
    assert later == document["turns"][3:]


async def test_a_program_is_shown_by_its_requests(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await rollouts.claim(db, rollout, RUN)
    await program_lives.begin(db, rollout, 0, 0)
    asked: list[ChatMessage] = []
    for number, question in enumerate(("list the files", "now fix it")):
        asked.append(ChatMessage(role=Role.USER, text=question))
        request = ModelRequest(dialect=Dialect.CHAT, model="m", messages=tuple(asked))
        await model_requests.ask(
            db,
            rollout,
            0,
            0,
            request,
            key_of(request),
            kind=BranchKind.MAIN,
            setting="",
            is_retry=False,
        )
        span = VersionSpan(0, 0, 2)
        parent, start = (None, 0) if not number else (0, 4)
        reply = Call(
            number, parent, start, (1, 2), (3, 4), (-0.5, -0.5), (span,), f"answer {number}", "stop"
        )
        await model_requests.put_reply(db, rollout, 0, reply, f"h{number}")
        asked.append(ChatMessage(role=Role.ASSISTANT, text=f"answer {number}"))
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        page = (await client.get(FIRST)).text
        second = (await client.get(f"{FIRST}?from=2")).text
    assert "list the files" in page and "answer 0" in page and "2 requests answered" in page
    # A page that begins with the second request shows what that added to the first one.
    assert "now fix it" in second and "list the files" not in second.partition("terminal")[2]


async def test_pages_of_the_list_follow_each_other_and_leave_none_out(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    made: list[RolloutId] = []
    for index in range(30):
        _, ids = await add_group(db, index, size=4)
        made = [*ids, *made]
    await play(db, made[0], Told(), verdict=Verdict.NOT_RESOLVED)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        seen: list[str] = []
        address = "/c/first/rollouts.json"
        while True:
            document = (await client.get(address)).json()
            seen += [row["id"] for row in document["rows"]]
            if document["next_after"] is None:
                break
            address = f"/c/first/rollouts.json?after={document['next_after']}"
        assert seen == made
        one = (await client.get("/c/first/rollouts.json?verdict=not_resolved")).json()
        assert [row["id"] for row in one["rows"]] == [made[0]]
        assert one["facets"]["stop"] == [["submitted", 1]] and one["num_matching"] == 1
        none = await client.get("/c/first/rollouts?state=masked")
        assert "No rollout matches" in none.text


async def test_a_step_its_groups_and_tokens_are_linked(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    await add_ready_group(db, 0)
    planned = await steps.plan_step(db, CAMPAIGN, 1, 1)
    assert planned
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        step = (await client.get("/c/first/steps/1")).text
        assert "/c/first/groups/first/g000000" in links_of(step)
        group = (await client.get("/c/first/groups/g000000.json")).json()
        assert group["reward_mean"] == 0.5 and group["group"]["step"] == 1
        tokens = (await client.get(f"{FIRST}.json?tab=tokens&by=version")).json()
        assert [token["id"] for token in tokens["tokens"][0]["tokens"]] == [
            *call(0, 0, "first/g000000/000").prompt_ids,
            *call(0, 0, "first/g000000/000").completion_ids,
        ]
        assert tokens["tokens"][0]["is_trained"]
        # The policy's folder is on no disk here: the ids stand in the place of texts.
        assert "cannot be read" in tokens["colouring"]["note"]
        assert (await client.get(f"{FIRST}?tab=tokens&by=colour")).status_code == 400


async def test_an_evaluation_is_about_its_result(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    solved, failed, masked, _ = await add_evaluation(
        db, "measured", ["one", "two", "three", "four"]
    )
    await play(db, solved, Told())
    await play(db, failed, Told(), verdict=Verdict.NOT_RESOLVED)
    await play(db, masked, Told(fault="open: NodeFailed: gone"), verdict=Verdict.FAULT)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        page = (await client.get("/c/measured")).text
        results = (await client.get("/c/measured.json")).json()["results"]
        task = (await client.get("/t/two.json")).json()
        home = (await client.get("/")).text
    assert results["pass_at"][0]["value"] == 0.5 and results["pass_at"][0]["num_tasks"] == 2
    assert results["tally"]["num_masked"] == 1 and results["tally"]["num_unfinished"] == 1
    assert [each["task"] for each in results["tasks"]] == ["four", "three", "two", "one"]
    assert "pass@1" in page and "NodeFailed" in page and "Log-prob gap" not in page
    assert task["runs"][0]["versions"]["0"] == {
        "num_scored": 1,
        "num_resolved": 0,
        "num_unscored": 0,
    }
    assert "/c/measured" in links_of(home)


async def test_two_rollouts_are_compared_from_where_they_part(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    _, [one, other] = await add_group(db, size=2)
    await play(db, one, Told(command="ls"), num_turns=2)
    await play(db, other, Told(command="cat a.py"), num_turns=2, verdict=Verdict.NOT_RESOLVED)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        compared = await client.get(f"/compare.json?r={one}&r={other}")
        page = await client.get(f"/compare?r={one}&r={other}")
        runs = await client.get("/compare?c=first&c=first")
        alone = await client.get(f"/compare?r={one}")
    assert compared.json()["rollouts"]["parts_at"] == 1
    assert "cat a.py" in page.text and runs.status_code == 200
    assert alone.status_code == 400 and "two rollouts or of two runs" in alone.text


async def test_an_epoch_that_was_replaced_is_still_shown(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    claim = await rollouts.claim(db, rollout, RUN)
    await turns.put_call(db, rollout, claim.epoch, reply_of(0, "the first life", None, 0))
    await rollouts.new_epoch(db, rollout, claim.epoch, RUN)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        assert "No turn is stored yet" in (await client.get(FIRST)).text
        assert "the first life" in (await client.get(f"{FIRST}?epoch=0")).text
        missing = await client.get(f"{FIRST}?epoch=7")
    assert missing.status_code == 404 and "has no epoch 7" in missing.text


async def test_an_empty_store_tells_how_to_begin(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        home = (await client.get("/")).text
        nodes, engines = await client.get("/nodes"), await client.get("/engines")
    assert "mainspring quickstart" in home
    assert "No node has registered" in nodes.text and "No run has an engine" in engines.text


async def test_an_unknown_address_names_what_exists(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        for address, named in (
            ("/c/frist", "did you mean first"),
            ("/r/first/g000000/00", "first/g000000/000"),
            ("/c/first/groups/g9", "first/g000000"),
            ("/c/first/steps/4", "it has no step yet"),
            ("/t/train-1", "did you mean train-0"),
            ("/nothing", "/c/first"),
            (f"/o/{rollout}?call=3", "no such text"),
        ):
            answer = await client.get(address)
            assert answer.status_code == 404, address
            assert named in answer.text, address
        assert (await client.get("/c/frist.json")).json()["error"].startswith("no campaign frist")
        for address in ("/r/first/g000000/000?from=x", "/r/first/g000000/000?tab=x"):
            assert (await client.get(address)).status_code == 400


async def test_pages_change_nothing_in_the_store(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    settings = load_settings(home_of(tmp_path, store_url))
    async with reading_database(settings, statement_timeout_s=5.0) as reading:
        for open_one in (reading.transaction, reading.statement):
            with pytest.raises(DBAPIError, match="read-only transaction"):
                async with open_one() as connection:
                    await connection.execute(text("UPDATE store SET swept_at = now()"))


async def test_events_are_a_page_and_a_lane_below_the_curves(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    for index in range(2):
        await add_ready_group(db, index)
    lost = Event(EventKind.NODE_LOST, "vm", "node vm lost: <b>61</b> sandboxes", CAMPAIGN)
    await events.put(db, lost)
    await events.put(db, Event(EventKind.COMMAND, "set", "campaign set", CAMPAIGN, by="ada@host"))
    await steps.plan_step(db, CAMPAIGN, 1, num_groups=2)
    folder = {"policy_path": "/models/v1", "checkpoint": None}
    await steps.commit_step(db, CAMPAIGN, 1, metrics={"reward_mean": 0.5}, **folder)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        page = (await client.get("/events?c=first")).text
        assert "node vm lost: &lt;b&gt;61" in page and "ada@host: campaign set" in page
        one_kind = (await client.get("/events.json?c=first&kind=node_lost")).json()
        assert [event["kind"] for event in one_kind["events"]] == ["node_lost"]
        assert (await client.get("/events?kind=nothing")).status_code == 400
        assert (await client.get("/events?c=nothing")).status_code == 404
        campaign = (await client.get("/c/first")).text
    assert "before step 1: node vm lost: &lt;b&gt;61" in campaign
    assert 'href="/events?c=first"' in campaign


async def test_labels_and_the_note_stand_on_every_page_of_the_rollout(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    group = await add_ready_group(db, 0)
    rollout = RolloutId(FIRST.removeprefix("/r/"))
    await labels.change(db, [rollout], MarkChange(add=("odd",), note="look at turn 2"), "ann@lab")
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        for path in (
            FIRST,
            "/c/first/rollouts",
            f"/c/first/groups/{group}",
            "/t/train-0",
        ):
            assert '<span class="hide">label </span>odd' in (await client.get(path)).text, path
        page = (await client.get(FIRST)).text
        document = (await client.get(f"{FIRST}.json")).json()
        listed = (await client.get("/c/first/rollouts.json?label=odd")).json()
    assert "look at turn 2" in page and "ann@lab" in page
    assert document["marks"]["labels"][0]["name"] == "odd"
    assert [row["labels"] for row in listed["rows"]] == [["odd"]]
    assert listed["facets"]["label"] == [["odd", 1]]
