"""What gradings say about tasks, which of them a campaign uses, and a run in parts."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from store_records import task

from infra.db.database import Database
from infra.db.plans import run_plans
from infra.db.rollouts import groups, rollouts
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns, runs
from infra.db.tasks import selections, tasks
from infra.db.tasks.verifications import in_words, passes, reasons, references, verification_of
from mainspring.config.any_run import AnyRun
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.evaluations.regrade import RegradeConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.ids import CampaignId, rollout_id, run_group_id
from mainspring.status import (
    CampaignKind,
    GroupKind,
    GroupStatus,
    Player,
    StopReason,
    Verdict,
    Verification,
)
from mainspring.tasks.criterion import Canary, GradeReport, References

YES, NO, BROKEN = Verdict.RESOLVED, Verdict.NOT_RESOLVED, Verdict.FAULT


MADE_UP = {"tasks": {"source": "made-up"}, "policy": {"model": "none"}, "split": "train"}


def config(name: str, **given: object) -> EvaluationConfig:
    return EvaluationConfig.model_validate({"name": name, **MADE_UP, **given})


def verification(name: str, **given: object) -> VerificationConfig:
    return VerificationConfig.model_validate({"name": name, **MADE_UP, **given})


def regrade(name: str, of: str) -> RegradeConfig:
    return RegradeConfig.model_validate({"name": name, **MADE_UP, "of": of})


async def judged(
    db: Database,
    name: str,
    verdicts: dict[int, tuple[list[Verdict], list[Verdict]]],
    run: AnyRun | None = None,
    reports: Mapping[Player, GradeReport] = MappingProxyType({}),
) -> None:
    """A campaign that gave these verdicts on the gold and the empty patch of these tasks."""
    await campaigns.create(db, run or verification(name))
    group = run_group_id(CampaignId(name), 0)
    given = [
        (task(number).id, player, verdict)
        for number, pair in verdicts.items()
        for player, each in zip((Player.GOLD, Player.EMPTY), pair, strict=True)
        for verdict in each
    ]
    await groups.create_group(
        db,
        group,
        CampaignId(name),
        GroupKind.EVAL,
        index=0,
        policy_version=0,
        split="train",
        rollouts=[
            NewRollout(rollout_id(group, n), id, n, 1.0, player)
            for n, (id, player, _) in enumerate(given)
        ],
    )
    for n, (_, player, verdict) in enumerate(given):
        claimed = await rollouts.claim(db, rollout_id(group, n), "run")
        await rollouts.put_patch(db, claimed.rollout, 0, player.encode())
        if player in reports:
            await rollouts.put_grade(
                db, claimed.rollout, claimed.epoch, verdict, "", None, reports[player]
            )
        await rollouts.finish(
            db,
            claimed.rollout,
            claimed.epoch,
            stop_reason=StopReason.GIVEN,
            verdict=verdict,
            reward=None if verdict is BROKEN else 0.0,
            fault=None,
            num_turns=0,
            phase_s={},
        )


async def known(db: Database) -> list[Verification]:
    return list((await verification_of(db, "made-up", "train")).values())


async def test_verdicts_become_a_verification(db: Database) -> None:
    await tasks.put_tasks(db, [task(n) for n in range(7)])
    await judged(
        db,
        "v",
        {
            0: ([YES, YES], [NO, NO]),
            1: ([YES, NO], [NO, NO]),
            2: ([YES, YES], [NO, YES]),
            3: ([Verdict.PATCH_FAILED, Verdict.TESTS_TIMED_OUT], [NO]),
            4: ([YES], [YES]),
            5: ([YES, BROKEN], [BROKEN]),
        },
    )
    assert await known(db) == [
        Verification.VERIFIED,
        Verification.FLAKY,
        Verification.FLAKY,
        Verification.GOLD_FAILS,
        Verification.EMPTY_PASSES,
        Verification.UNVERIFIED,
        Verification.UNVERIFIED,
    ]
    # What could not be graded counts on neither side.
    said = in_words(await passes(db, CampaignId("v")))
    assert said == "gold patches 7/10 pass, empty patches 2/8 pass"


async def test_a_fix_that_fails_has_a_reason(db: Database) -> None:
    await tasks.put_tasks(db, [task(n) for n in range(3)])
    await judged(db, "v", {0: ([NO], [NO]), 1: ([YES], [NO]), 2: ([Verdict.PATCH_FAILED], [NO])})
    assert await reasons(db, CampaignId("v")) == {
        task(0).id: "the tests fail",
        task(2).id: "the patch does not apply",
    }


async def test_what_a_verification_saw_is_what_patches_are_compared_with(db: Database) -> None:
    await tasks.put_tasks(db, [task(n) for n in range(2)])
    old, gold, empty = (
        GradeReport(num_run=n, num_left_out=1, canary=canary)
        for n, canary in ((1, Canary.PASSED), (3, Canary.FAILED), (2, None))
    )
    await judged(db, "old", {0: ([YES], [NO])}, reports={Player.GOLD: old, Player.EMPTY: old})
    await judged(db, "new", {0: ([YES], [NO])}, reports={Player.GOLD: gold, Player.EMPTY: empty})
    assert await references(db, task(0).id) == References(gold, empty)
    # A true fix that fails is no reference; nor is a run that had no patches of its own.
    await judged(db, "fails", {1: ([NO], [NO])}, reports={Player.GOLD: gold, Player.EMPTY: empty})
    again = regrade("again", "new")
    await judged(db, "again", {0: ([YES], [NO])}, again, reports={Player.GOLD: old})
    assert await references(db, task(1).id) == References(None, empty)
    assert await references(db, task(0).id) == References(gold, empty)


async def test_the_newest_verification_that_judged_both_patches_counts(db: Database) -> None:
    await tasks.put_tasks(db, [task(0), task(1, split="heldout")])
    await judged(db, "first", {0: ([NO], [NO])})
    assert await known(db) == [Verification.GOLD_FAILS]
    await judged(db, "mended", {0: ([YES], [NO])})
    await judged(db, "half", {0: ([NO], [BROKEN])})
    await judged(db, "measured", {0: ([NO], [NO])}, regrade("measured", "mended"))
    assert await known(db) == [Verification.VERIFIED]
    both = await verification_of(db, "made-up")
    assert list(both.values()) == [Verification.UNVERIFIED, Verification.VERIFIED]


async def test_a_selection_does_not_change(db: Database) -> None:
    await tasks.put_tasks(db, [task(n) for n in range(4)])
    await judged(db, "v", {0: ([YES], [NO]), 1: ([NO], [NO]), 2: ([YES], [NO])})
    chosen = await selections.choose(db, config("c"), "train")
    assert await campaigns.create(db, config("c"), chosen)
    await tasks.put_tasks(db, [task(9)])
    await judged(db, "w", {n: ([YES], [NO]) for n in (1, 3, 9)})
    assert await selections.task_ids(db, config("c"), "train") == [task(0).id, task(2).id]
    assert await selections.left_out(db, CampaignId("c")) == {
        Verification.GOLD_FAILS: 1,
        Verification.UNVERIFIED: 1,
    }
    async with db.transaction() as connection:
        assert await selections.size(connection, config("c"), "train") == 2
        assert await selections.task_at(connection, config("c"), "train", 1) == task(2).id
        assert await selections.task_at(connection, config("c"), "train", 2) is None
        # Stored without a selection: all there is.
        assert await selections.size(connection, config("old"), "train") == 5


@pytest.mark.parametrize("kind", [CampaignKind.EVAL, CampaignKind.VERIFY])
async def test_a_run_is_planned_in_whole_tasks(
    db: Database, monkeypatch: pytest.MonkeyPatch, kind: CampaignKind
) -> None:
    monkeypatch.setattr(run_plans, "MAX_GROUP_SIZE", 5)
    await tasks.put_tasks(db, [task(n) for n in range(4)])
    given = {"samples": 2, "slice": "1:4", "tasks": {"source": "made-up", "unverified": "use"}}
    wanted = (config if kind is CampaignKind.EVAL else verification)("r", **given)
    chosen = await selections.choose(db, wanted, "train")
    await campaigns.create(db, wanted, chosen)
    assert (await campaigns.get(db, CampaignId("r"))).config == wanted
    parts = [(await run_plans.planned(db, wanted, index)).rollouts for index in range(5)]
    ways = 2 if kind is CampaignKind.EVAL else 4
    assert [len(part) for part in parts] == ([4, 2, 0, 0, 0] if ways == 2 else [4, 4, 4, 0, 0])
    planned = [each for part in parts for each in part]
    assert [each.task for each in planned] == [task(n).id for n in (1, 2, 3) for _ in range(ways)]
    assert len(planned) == await run_plans.total(db, wanted) == len({each.id for each in planned})
    assert all(len(part) <= 5 for part in parts)
    players = {each.player for each in planned}
    assert players == ({Player.POLICY} if ways == 2 else {Player.GOLD, Player.EMPTY})


async def test_each_patch_is_graded_again_once(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_plans, "MAX_GROUP_SIZE", 2)
    await tasks.put_tasks(db, [task(0)])
    await judged(db, "of", {0: ([YES, NO, BROKEN], [NO, NO])})
    again = regrade("again", "of")
    await campaigns.create(db, again)
    campaign = CampaignId("again")
    assert await run_plans.total(db, again) == 5
    sources: list[str] = []
    for index in range(4):
        planned = (await run_plans.planned(db, again, index)).rollouts
        assert [each.source_rollout for each in planned] == [
            each.source_rollout for each in (await run_plans.planned(db, again, index)).rollouts
        ]
        sources += [each.source_rollout or "" for each in planned]
        if planned:
            await groups.create_group(
                db,
                run_group_id(campaign, index),
                campaign,
                GroupKind.EVAL,
                index=index,
                policy_version=0,
                split="train",
                rollouts=planned,
            )
    assert sources == [f"of/r000000/{n:03d}" for n in range(5)]


async def test_a_part_taken_up_again_has_what_is_not_judged(db: Database) -> None:
    await tasks.put_tasks(db, [task(0)])
    await judged(db, "v", {0: ([YES, BROKEN], [NO])})
    group = run_group_id(CampaignId("v"), 0)
    assert await groups.finish_group(db, group) is GroupStatus.READY
    assert await runs.take_up(db, group) == [1]
    assert (await groups.get(db, group)).status is GroupStatus.RUNNING
    again = await rollouts.claim(db, rollout_id(group, 1), "another run")
    assert again.epoch == 1
    # Graded, and cancelled before its end was written.
    await rollouts.put_grade(db, again.rollout, again.epoch, YES, "")
    assert await groups.finish_group(db, group, cancelled=True) is GroupStatus.CANCELLED
    assert await runs.take_up(db, group) == [1]
    assert await runs.take_up(db, run_group_id(CampaignId("v"), 1)) is None


async def test_a_part_that_was_cancelled_with_all_verdicts_is_closed_anew(db: Database) -> None:
    await tasks.put_tasks(db, [task(0)])
    await judged(db, "v", {0: ([YES], [NO])})
    group = run_group_id(CampaignId("v"), 0)
    assert await groups.finish_group(db, group, cancelled=True) is GroupStatus.CANCELLED
    assert await runs.take_up(db, group, complete_stays=True) == []
    assert await groups.finish_group(db, group) is GroupStatus.READY


async def test_a_complete_part_may_stay_with_its_faults(db: Database) -> None:
    await tasks.put_tasks(db, [task(0)])
    await judged(db, "v", {0: ([YES, BROKEN], [NO])})
    group = run_group_id(CampaignId("v"), 0)
    assert await runs.take_up(db, group, complete_stays=True) == [1]
    assert await groups.finish_group(db, group) is GroupStatus.READY
    assert await runs.take_up(db, group, complete_stays=True) == []
    assert (await groups.get(db, group)).status is GroupStatus.READY
