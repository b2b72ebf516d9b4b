"""Whatever models, tools and tests wrote: pages draw it as text, and link nowhere else."""

from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from store_records import add_ready_group, begin_campaign
from viewed import Told, add_evaluation, home_of, links_of, play, viewer_of, wrong_in

from infra.db.database import Database
from infra.db.nodes import engines, nodes
from infra.db.nodes.nodes import NodeBeat
from infra.db.nodes.sandboxes import open_lease
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.ids import CampaignId, NodeId, SandboxId
from mainspring.status import CampaignStatus, SandboxPurpose, Verdict
from view.hostile_text import drawn

HOSTILE = (
    "</pre></script><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)> ' onmouseover='alert(2)",
    "{{ 7 * 7 }} {% include 'base.html.j2' %} <style>*{display:none}</style>",
    "\x1b]8;;http://evil.example\x07link\x1b]8;;\x07 \x1b[31mred\x1b[0m \x1b[2J\x1b[H",
    "\u202egnp.exe\u202c zero\u200bwidth \ufeff \u2066x\u2069 \U000e0041 a\x00b \x7f\x9b31m",
    "javascript:alert(1) <a href='javascript:alert(1)'>x</a> <meta http-equiv=refresh content=0>",
    "one\ud800half and \udfff",
    "\r\nSet-Cookie: x=1\r\n\r\n<body onload=alert(1)>",
)
TEXT = "\n".join(HOSTILE)
STORED = TEXT.replace("\x00", "").encode("utf-8", "replace").decode()
"""What Postgres takes where no column cleans it."""
LONG = "<b>" + "x" * 1_000_000


async def _store(db: Database) -> None:
    """Runs whose every text is hostile."""
    await begin_campaign(db)
    await add_ready_group(db, 0)
    await campaigns.set_status(db, CampaignId("first"), CampaignStatus.FAILED, STORED)
    task = f"odd/{STORED}?#%"
    hostile, long, usual = await add_evaluation(db, "looked-at", [task, "long", "usual"])
    told = Told(
        reply=TEXT,
        command=TEXT,
        output=TEXT.encode("utf-8", "surrogatepass") + b"\xff\xfe\x00",
        patch=f"diff --git a/{TEXT} b/x\n+{TEXT}\n-{TEXT}".encode("utf-8", "replace"),
        note=TEXT,
        tests=TEXT,
        test=TEXT,
        fault=f"execute: {TEXT}",
    )
    node = NodeId(STORED)
    await open_lease(
        db,
        SandboxId(STORED),
        hostile,
        0,
        purpose=SandboxPurpose.AGENT,
        node=node,
        backend="bwrap",
    )
    await play(db, hostile, told, num_turns=3, verdict=Verdict.FAULT)
    output = LONG.encode() + b"\n" + b"line\n" * 500
    await play(db, long, Told(LONG, LONG, output, LONG.encode(), LONG, LONG, LONG))
    await play(db, usual, Told(), num_turns=2)
    beat = NodeBeat(node, 4, 0, None, [STORED], [STORED], 1, 1, STORED, 5.0, None)
    await nodes.beat(db, beat)
    await engines.add(db, CampaignId("looked-at"), [], TEXT, "http://127.0.0.1:1", TEXT)


async def _walk(client: httpx.AsyncClient) -> dict[str, httpx.Response]:
    """Every page that can be reached from the first one, by address without fragment."""
    seen: dict[str, httpx.Response] = {}
    waiting = ["/"]
    while waiting:
        address = waiting.pop().partition("#")[0]
        if not address.startswith("/") or address in seen:
            continue
        if "/rollouts?" in address and "&" in address:
            continue  # filters of filters are the same page
        seen[address] = answer = await client.get(address)
        if answer.headers["content-type"].startswith("text/html"):
            waiting += links_of(answer.text)
    return seen


async def test_every_page_draws_hostile_text_and_no_link_is_dead(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await _store(db)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        answers = await _walk(client)
    assert {address: each.status_code for address, each in answers.items() if each.is_error} == {}
    pages = {
        address: each
        for address, each in answers.items()
        if each.headers["content-type"].startswith("text/html")
    }
    assert {
        address: wrong for address, each in pages.items() if (wrong := wrong_in(each.text))
    } == {}
    assert max(len(each.content) for each in pages.values()) < 3_000_000
    kinds = {address.split("?")[0].split("/")[1] for address in pages}
    assert {"c", "r", "t", "nodes", "engines"} <= kinds
    for address, each in answers.items():
        assert "default-src 'none'" in each.headers["content-security-policy"], address
        assert each.headers["x-content-type-options"] == "nosniff", address
        assert "set-cookie" not in each.headers, address


async def test_texts_are_sent_as_files_without_a_type_that_runs(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await _store(db)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        for query in ("call=0&index=0", "what=reply&call=0", "what=patch", "what=tests"):
            answer = await client.get(f"/o/looked-at/r000000/000?{query}")
            assert answer.status_code == 200, query
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert b"<script>" in answer.content


async def test_the_same_as_json_has_every_character(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await _store(db)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        for address in (
            "/home.json",
            "/nodes.json",
            "/engines.json",
            "/c/looked-at.json",
            "/c/looked-at/rollouts.json",
            "/c/looked-at/tasks.json",
            "/c/looked-at/config.json",
            "/c/looked-at/groups/r000000.json",
            "/c/first/steps/1.json",
            "/r/looked-at/r000000/000.json?tab=tokens",
            "/t/usual.json",
            "/compare.json?r=looked-at/r000000/000&r=looked-at/r000000/002",
        ):
            answer = await client.get(address)
            assert answer.headers["content-type"] == "application/json", address
            if answer.status_code == 404:
                assert "has no step" in answer.json()["error"], address
                continue
            assert answer.status_code == 200, address
        [shown] = (await client.get("/r/looked-at/r000000/000.json")).json()["turns"][:1]
        assert "\x1b]8;;http://evil.example\x07" in shown["commands"][0]["output"]


async def test_an_id_that_ends_as_data_does_is_still_a_page(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    await add_evaluation(db, "looked-at", ["made.json"])
    await tasks.get_task(db, (await tasks.task_ids(db, "made-up", "train"))[0])
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        listed = (await client.get("/c/looked-at/tasks")).text
        [address] = [link for link in links_of(listed) if link.startswith("/t/made")]
        answer = await client.get(address)
        assert answer.headers["content-type"].startswith("text/html")
        assert (await client.get(f"/t/{quote('made.json')}.json")).json()["id"] == "made.json"


@pytest.mark.parametrize("text", [*HOSTILE, TEXT, LONG[:5000], "", "\x1b[", "\x1b[38;5;9mx\x1b[m"])
def test_what_is_drawn_is_markup_without_a_trace_of_what_it_would_do(text: str) -> None:
    assert wrong_in(str(drawn(text)).encode("utf-8", "replace").decode()) == []


def test_colours_of_a_terminal_are_followed_and_nothing_else() -> None:
    assert str(drawn("\x1b[1;31mno\x1b[0m yes")) == '<span class="bold fg1">no</span> yes'
    assert "ESC" in str(drawn("\x1b[2Jgone")) and "[2Jgone" in str(drawn("\x1b[2Jgone"))
    assert str(drawn("a\x00\x00\x00b")).count("NUL x3") == 1
