"""The search page shows places, marks the words, leads to the turn, and draws all as text."""

import html
import re
from pathlib import Path

from infra.db.database import Database
from infra.db.rollouts import search_pieces
from tests.infra.db.store_records import add_group, begin_campaign
from tests.view.viewed import Told, home_of, links_of, play, viewer_of, wrong_in

HOSTILE = b"</code><script>alert(1)</script> \x1b]8;;http://x\x07zeta\x1b]8;;\x07 \xe2\x80\xae \xff"


async def test_a_hit_leads_to_its_turn(db: Database, store_url: str, tmp_path: Path) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, Told(output=b"an omega & more"), num_turns=23)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        assert (
            "1 rollout has ended and cannot be searched yet" in (await client.get("/search")).text
        )
        await search_pieces.fill_next(db)
        page = (await client.get("/search?q=omega+exit:0")).text
        assert "12 places in 1 rollout of 1 task" in page and not wrong_in(page)
        assert "an <mark>omega</mark> &amp; more" in page
        links = [link for link in links_of(page) if "#t" in link]
        assert links == [f"/r/{rollout}" + at for at in _addresses()]
        assert '<article id="t23"' in (await client.get(links[-1].partition("#")[0])).text
        narrowed = next(link for link in links_of(page) if "task%3A" in link)
        assert "12 places" in (await client.get(html.unescape(narrowed))).text
        found = (await client.get("/search.json?q=omega+exit:1")).json()["found"]
        assert [hit["call"] for hit in found["hits"]] == list(range(1, 23, 2))
        assert (await client.get("/search?q=patch+part:patch")).status_code == 200
        assert "nothing matches" in (await client.get("/search?q=absent")).text
    assert 'href="/search" data-key="/"' in page


def _addresses() -> list[str]:
    return [("?from=21" if turn > 20 else "") + f"#t{turn}" for turn in range(1, 24, 2)]


async def test_pages_of_hits_follow_each_other(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, Told(output=b"omega"), num_turns=45)
    await search_pieces.fill_next(db)
    address: str | None = "/search?q=omega"
    turns: list[int] = []
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        while address:
            page = (await client.get(html.unescape(address))).text
            turns += [int(found) for found in re.findall(r"#t(\d+)", page)]
            address = next((link for link in links_of(page) if "after=" in link), None)
    assert turns == list(range(1, 46))


async def test_what_is_searched_and_asked_is_drawn_as_text(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, Told(output=HOSTILE))
    await search_pieces.fill_next(db)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        page = (await client.get("/search", params={"q": "zeta script"})).text
        assert "<mark>zeta</mark>" in page and not wrong_in(page)
        odd = await client.get("/search", params={"q": 'zeta "><script>alert(1)</script> \u202e'})
        assert odd.status_code in (200, 400) and not wrong_in(odd.text)
        for query in ("verdit:resolved", "->", '"x', "zeta&after=here"):
            refused = await client.get(f"/search?q={query.replace('>', '%3E')}")
            assert refused.status_code == 400 and not wrong_in(refused.text)
        assert "did you mean verdict?" in (await client.get("/search?q=verdit:x")).text
