"""Pages tell what a step did with each rollout and with its worst tokens."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from store_records import CAMPAIGN, add_ready_group, begin_campaign, call
from viewed import home_of, links_of, viewer_of, wrong_in

from infra.db.database import Database
from infra.db.training import steps
from mainspring.ids import GroupId, rollout_id
from mainspring.status import Untrained
from mainspring.training.trained_rollouts import KeptCall, StoredGap, TrainedRollout

FIRST, SECOND = "/r/first/g000000/000", "/r/first/g000000/001"
STEP = "/c/first/steps/1"


async def committed(
    db: Database, *, by_call: bool = False, kept: Sequence[KeptCall] = ()
) -> GroupId:
    """A step that trained the first rollout of its group, and not the second."""
    await begin_campaign(db)
    group = await add_ready_group(db, 0)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    first, second = rollout_id(group, 0), rollout_id(group, 1)
    served = call(1, 12, first).logprobs[3]
    await steps.commit_step(
        db,
        CAMPAIGN,
        1,
        metrics={},
        policy_path="/v1",
        checkpoint=None,
        rollouts=[
            TrainedRollout(first, 1.5, by_call, 10, None, {0: -2.0, 1: 5.0} if by_call else None),
            TrainedRollout(second, -0.5, False, 0, Untrained.OVERLONG),
        ],
        gaps=[
            StoredGap(first, 1, 3, served, served - 0.5),
            StoredGap(second, 0, 0, -1.0, float("nan")),
        ],
        kept=kept,
    )
    return group


async def test_a_step_lists_its_rollouts_and_its_worst_tokens(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await committed(db)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        page = (await client.get(STEP)).text
        document = (await client.get(f"{STEP}.json")).json()
        group = (await client.get("/c/first/groups/g000000")).text
        rollout = (await client.get(FIRST)).text
        raw = (await client.get(f"{SECOND}.json?tab=raw")).json()["raw"]
        to_token = next(link for link in links_of(page) if "#k" in link)
        address, _, place = to_token.partition("#")
        tokens = (await client.get(address)).text
    assert not wrong_in(page) and not wrong_in(tokens)
    assert "1 of 2 trained" in page and "none: a limit cut it off" in page
    assert "+1.5" in page and "-0.5" in page
    # The gap that is no number comes first; both link to their token.
    assert [gap["rollout"] for gap in document["gaps"]] == [
        "first/g000000/001",
        "first/g000000/000",
    ]
    assert to_token.startswith(f"{SECOND}?tab=tokens&by=gap&turn=1#k1-0")
    assert f'id="{place}"' in tokens and "not a number" in page
    assert "+1.5" in group and "a limit cut it off" in group
    assert "+1.5" in rollout
    assert raw["training"]["masked_why"] == "overlong" and raw["training"]["step"] == 1


async def test_tokens_are_coloured_by_what_the_step_did(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await committed(db, by_call=True)
    async with viewer_of(home_of(tmp_path, store_url)) as client:

        async def shades(address: str, by: str) -> list[str]:
            answer = await client.get(f"{address}.json?tab=tokens&by={by}")
            turns = answer.json()["tokens"]
            return [
                token["shade"]
                for turn in turns
                for token in turn["tokens"]
                if token["logprob"] is not None
            ]

        assert await shades(FIRST, "advantage") == ["worse2"] * 5 + ["better2"] * 5
        assert await shades(FIRST, "trained") == ["trained"] * 10
        assert await shades(FIRST, "gap") == ["p0"] * 8 + ["p4"] + ["p0"]
        assert await shades(SECOND, "advantage") == ["masked"] * 10
        assert await shades(SECOND, "gap") == ["p5"] + ["p0"] * 9
        page = (await client.get(f"{SECOND}?tab=tokens&by=trained")).text
        worst = (await client.get(f"{FIRST}?tab=tokens&by=gap&turn=2")).text
        assert (await client.get(f"{FIRST}?tab=tokens&by=gap&turn=99")).status_code == 200
    assert "not trained: a limit cut it off" in page
    [title] = re.findall(r'id="k2-3" title="([^"]*)"', worst)
    assert "recomputed" in title and "advantage 5" in title


async def test_tokens_are_coloured_by_what_the_campaign_kept(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    first = rollout_id(GroupId("first/g000000"), 0)
    served = np.array(call(0, 0, first).logprobs, np.float32)
    entropies = np.array([0.01, 0.3, np.nan, 1.5, 9.0], np.float32)
    await committed(db, kept=[KeptCall(first, 0, served - np.float32(0.05), entropies)])
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        by_entropy = (await client.get(f"{FIRST}.json?tab=tokens&by=entropy")).json()
        by_gap = (await client.get(f"{FIRST}.json?tab=tokens&by=gap")).json()
        without = (await client.get(f"{SECOND}?tab=tokens&by=entropy")).text
    shown = [token for token in by_entropy["tokens"][0]["tokens"] if token["logprob"] is not None]
    assert [token["shade"] for token in shown] == ["p0", "p2", "context", "p4", "p5"]
    gaps = [token["gap"] for token in by_gap["tokens"][0]["tokens"] if token["logprob"] is not None]
    assert gaps == [pytest.approx(0.05, abs=1e-4)] * 5
    assert "trainer.keep_recomputed" in without


async def test_a_step_of_an_earlier_release_has_no_details(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    await add_ready_group(db, 0)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    await steps.commit_step(db, CAMPAIGN, 1, metrics={}, policy_path="/v1", checkpoint=None)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        page = (await client.get(STEP)).text
        tokens = (await client.get(f"{FIRST}?tab=tokens&by=advantage")).text
    assert "trained tokens" not in page and "Largest log-prob gaps" not in page
    assert "an earlier release" in tokens
