"""Labels and notes: given once, of the epoch that was seen, chosen by, removed with the rollout."""

import asyncio
from pathlib import Path

import pytest
from store_records import CAMPAIGN, RUN, add_group, add_ready_group, begin_campaign

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.reading import rollout_pages, rollout_search, search_hits
from infra.db.reading.rollout_search import RolloutQuery
from infra.db.rollouts import labels, rollouts, search_pieces
from infra.db.rollouts.labels import MarkChange
from infra.db.runs import campaign_rows, campaigns, events, removal
from mainspring.config.any_run import AnyRun
from mainspring.errors import UsageError
from mainspring.ids import RolloutId
from mainspring.status import CampaignStatus
from mainspring.trajectories.format import TrajectoryFormat
from mainspring.trajectories.rollout_filter import parse as where
from mainspring.trajectories.search_query import parse
from reports.export import formats
from tests.view.viewed import Told, play

A, B = RolloutId("first/g000000/000"), RolloutId("first/g000000/001")


async def marks(db: Database, rollout: RolloutId) -> labels.Marks:
    async with db.transaction() as connection:
        return await labels.of_rollout(connection, rollout)


async def config(db: Database) -> AnyRun:
    return (await campaigns.get(db, CAMPAIGN)).config


async def found(db: Database, **query: object) -> list[str]:
    rows, total = await rollout_search.find(db, CAMPAIGN, RolloutQuery(**query))  # pyright: ignore
    assert total == len(rows)
    return [row.id for row in rows]


async def test_a_label_is_given_once_and_the_first_stands(db: Database) -> None:
    await begin_campaign(db)
    await add_ready_group(db, 0)
    gave = await asyncio.gather(
        *(labels.change(db, [A, B], MarkChange(add=("good",)), by) for by in ("ann", "bob", "cy"))
    )
    assert sorted(map(len, gave)) == [0, 0, 2]
    [given] = (await marks(db, A)).labels
    again = await labels.change(db, [A], MarkChange(add=("good",)), "dan")
    assert again == [] and (await marks(db, A)).labels == (given,)
    told = [event for event in await events.newest(db) if event.kind == "command"]
    assert [event.text for event in told] == ["rollout label: 2 rollouts: good added"]
    assert told[0].by == given.by
    assert await labels.change(db, [A], MarkChange(remove=("good", "none")), "ann") == [A]
    assert (await marks(db, A)).labels == () and (await marks(db, B)).labels


async def test_the_newest_note_stands_and_the_events_have_all(db: Database) -> None:
    await begin_campaign(db)
    await add_ready_group(db, 0)
    for text in ("first thought", "second \0 thought", "second \0 thought", ""):
        await labels.change(db, [A], MarkChange(note=text), "ann")
        note = (await marks(db, A)).note
        assert (note.text if note else "") == text.replace("\0", "\ufffd")
    told = [each.text for each in await events.newest(db) if each.kind == "command"]
    assert len(told) == 3 and "first thought" in told[0] and told[2].endswith("note removed")


async def test_an_unknown_rollout_leaves_all_as_they_were(db: Database) -> None:
    await begin_campaign(db)
    await add_ready_group(db, 0)
    with pytest.raises(UnknownId, match="first/g000000/777"):
        await labels.change(
            db, [A, RolloutId("first/g000000/777")], MarkChange(add=("good",), note="n"), "ann"
        )
    assert await marks(db, A) == labels.Marks()


async def test_a_retried_rollout_is_not_chosen_by_a_label_of_before(db: Database) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await rollouts.claim(db, rollout, RUN)
    await labels.change(db, [rollout], MarkChange(add=("good",), note="look"), "ann")
    assert await found(db, label="good") == [rollout]
    # As a retry does: another run claims it.
    claim = await rollouts.claim(db, rollout, "run-b")
    assert claim.epoch == 1 and await found(db, label="good") == []
    seen = await marks(db, rollout)
    assert [label.epoch for label in seen.labels] == [0] and seen.names(1) == []
    assert await labels.names_in(db, CAMPAIGN) == {}
    assert await labels.change(db, [rollout], MarkChange(add=("good",)), "bob") == [rollout]
    assert await found(db, label="good") == [rollout]


async def test_lists_facets_and_searches_choose_by_label(db: Database) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, size=3)
    for rollout in ids:
        await play(db, rollout, Told())
    while await search_pieces.fill_next(db):
        pass
    await labels.change(db, ids[:2], MarkChange(add=("good",)), "ann")
    await labels.change(db, ids[1:2], MarkChange(add=("odd",)), "ann")
    run = await config(db)
    counts = await rollout_pages.facets(db, CAMPAIGN, run, {})
    assert counts["label"] == [("good", 2), ("odd", 1)] and counts["verdict"] == [("resolved", 3)]
    narrowed = await rollout_pages.facets(db, CAMPAIGN, run, {"label": "odd"})
    assert narrowed["label"] == [("good", 1), ("odd", 1)] and narrowed["verdict"][0][1] == 1
    page = await rollout_pages.page(db, CAMPAIGN, run, {"label": "good"})
    assert [(row.id, row.labels) for row in page.rows] == [
        (ids[0], ["good"]),
        (ids[1], ["good", "odd"]),
    ]
    sought = await search_hits.search(db, parse("ls label:good -label:odd part:command"))
    assert [hit.rollout for hit in sought.hits] == [ids[0]]
    assert await found(db, label="odd", conditions=tuple(where("version = 0"))) == [ids[1]]
    assert await found(db, conditions=tuple(where("step is not null"))) == []
    assert await found(db, conditions=tuple(where("group = first/g000000"))) == ids


async def test_only_labelled_rollouts_are_exported(db: Database, tmp_path: Path) -> None:
    await begin_campaign(db)
    await add_ready_group(db, 0)
    await labels.change(db, [B], MarkChange(add=("bad",)), "ann")

    async def write(label: str) -> list[str]:
        out = tmp_path / label
        await formats.export(
            db,
            CAMPAIGN,
            out,
            format=TrajectoryFormat.ATIF,
            resolved=False,
            label=label,
            limit=None,
            force=False,
            progress=lambda done, of: None,
        )
        return sorted(each.name for each in out.iterdir())

    assert len(await write("bad")) == 1
    with pytest.raises(UsageError, match="no ended rollout with the label good"):
        await write("good")


async def test_they_are_archived_and_removed_with_their_rollout(db: Database) -> None:
    await begin_campaign(db)
    await add_ready_group(db, 0)
    await labels.change(db, [A], MarkChange(add=("good",), note="n"), "ann")
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.CANCELLED)
    before = await marks(db, A)
    kept = {}
    async with db.snapshot() as connection:
        for table in campaign_rows.tables():
            kept[table.name] = [
                dict(zip(table.columns, row, strict=True))
                async for rows in campaign_rows.read(connection, table, CAMPAIGN)
                for row in rows
            ]
    assert len(kept["rollout_labels"]) == len(kept["rollout_notes"]) == 1
    await removal.remove(db, CAMPAIGN, await removal.mark(db, CAMPAIGN))
    assert await marks(db, A) == labels.Marks()
    with pytest.raises(UnknownId):
        await labels.change(db, [A], MarkChange(add=("good",)), "ann")
    async with db.transaction() as connection:
        for table in campaign_rows.tables():
            await campaign_rows.write(connection, table, kept[table.name])
    assert await marks(db, A) == before
