"""From a rollout's rows to its reward's parts and suspicions: read once, stored once, fenced."""

import asyncio
import dataclasses
from pathlib import Path

import pytest
from store_records import RUN, add_group, call, config, task
from temporalio.testing import ActivityEnvironment

from activities.rollouts import RolloutActivities
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.rollouts import rollouts, turns
from infra.db.rollouts.outcomes import played
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.config.reward import RewardConfig, RewardPart
from mainspring.ids import RolloutId
from mainspring.protocol.rollout import FinishInput
from mainspring.rewards.scoring import RewardBroken
from mainspring.status import StopReason, Suspicion, Verdict
from mainspring.tasks.criterion import GradeReport

PARTS = (
    RewardPart(name="outcome", options={"failed": -1.0}),
    RewardPart(name="tests_passed", weight=0.5),
    RewardPart(name="format", weight=0.1),
    RewardPart(name="length", options={"free_turns": 1.0}),
)
REPLIES = ("```bash\ngit log --all\n```", "I forgot the block.", "```bash\ntrue\n```")
PATCH = b"""\
diff --git a/conftest.py b/conftest.py
new file mode 100644
--- /dev/null
+++ b/conftest.py
@@ -0,0 +1 @@
+collect_ignore = ["tests"]
"""
REPORT = GradeReport(
    judge="test_log", fail_to_pass_passed=("a", "b", "c"), fail_to_pass_failed=("d",)
)


async def rollout_of(db: Database, *parts: RewardPart) -> RolloutId:
    """Claimed by RUN, in epoch 0, of a campaign with these parts."""
    await tasks.put_tasks(db, [task(0)])
    await campaigns.create(db, config().model_copy(update={"reward": RewardConfig(parts=parts)}))
    _, [rollout] = await add_group(db, size=1)
    await rollouts.claim(db, rollout, RUN)
    return rollout


async def play(db: Database, rollout: RolloutId, epoch: int = 0) -> None:
    start = 0
    for turn, text in enumerate(REPLIES):
        reply = dataclasses.replace(call(turn, start), text=text)
        await turns.put_call(db, rollout, epoch, reply)
        start = reply.end
    await rollouts.put_patch(db, rollout, epoch, PATCH)
    await rollouts.put_grade(db, rollout, epoch, Verdict.NOT_RESOLVED, "", report=REPORT)


def end(rollout: RolloutId, epoch: int = 0, stop: StopReason = StopReason.SUBMITTED) -> FinishInput:
    return FinishInput(
        rollout=rollout,
        epoch=epoch,
        stop_reason=stop,
        verdict=Verdict.NOT_RESOLVED if stop is StopReason.SUBMITTED else None,
        num_turns=len(REPLIES),
    )


async def finish(db: Database, ask: FinishInput) -> float | None:
    activities = RolloutActivities(db, FactCache(db))
    return (await ActivityEnvironment().run(activities.finish_rollout, ask)).reward


async def test_parts_and_suspicions_are_stored_once(db: Database) -> None:
    rollout = await rollout_of(db, *PARTS)
    await play(db, rollout)
    given = await asyncio.gather(*(finish(db, end(rollout)) for _ in range(3)))
    assert given == [pytest.approx(-1.0 + 0.5 * 0.75 + 0.1 * 2 / 3 - 2 / 19)] * 3
    record = await rollouts.get(db, rollout)
    assert record.reward == given[0]
    assert record.reward_parts == {
        "outcome": -1.0,
        "tests_passed": 0.75,
        "format": pytest.approx(2 / 3),
        "length": pytest.approx(-2 / 19),
    }
    assert record.suspicions == [Suspicion.SEARCHED_HISTORY, Suspicion.EDITED_TESTS]
    late = await finish(db, end(rollout, stop=StopReason.CANCELLED))
    assert late == record.reward and await rollouts.get(db, rollout) == record


async def test_an_older_epoch_stores_nothing_and_a_new_one_starts_clean(db: Database) -> None:
    rollout = await rollout_of(db, *PARTS)
    await play(db, rollout)
    await finish(db, end(rollout))
    await rollouts.claim(db, rollout, "run-b")
    with pytest.raises(Fenced):
        await finish(db, end(rollout))
    record = await rollouts.get(db, rollout)
    assert (record.reward, record.reward_parts, record.suspicions) == (None, None, [])
    assert await played(db, rollout, 0) is None
    with pytest.raises(Fenced):
        await rollouts.put_patch(db, rollout, 0, b"")
    assert await finish(db, end(rollout, 1, StopReason.INFRA_FAULT)) is None
    record = await rollouts.get(db, rollout)
    assert (record.reward_parts, record.suspicions) == (None, [])


async def test_what_was_played_is_one_read(db: Database) -> None:
    rollout = await rollout_of(db, *PARTS)
    nothing = await played(db, rollout, 0)
    assert nothing is not None
    assert (nothing.replies, nothing.num_tokens, nothing.patch) == ((), 0, b"")
    await play(db, rollout)
    found = await played(db, rollout, 0)
    assert found is not None and found.report == REPORT and found.patch == PATCH
    assert found.replies == REPLIES
    assert (found.num_completion_tokens, found.num_tokens) == (15, 36)


async def test_a_length_in_tokens_is_scored(db: Database) -> None:
    rollout = await rollout_of(db, RewardPart(name="length", options={"free_tokens": 10.0}))
    await play(db, rollout)
    assert await finish(db, end(rollout)) == pytest.approx(-26 / (config().policy.max_context - 10))


async def reply_in_text(
    db: Database, rollout: RolloutId, *counts: tuple[int | None, int | None]
) -> None:
    """Turns of an endpoint that says these numbers of prompt and reply tokens."""
    for turn, (num_prompt, num_reply) in enumerate(counts):
        reply = dataclasses.replace(
            call(turn, 0, num_prompt=0, num_reply=0),
            spans=(),
            num_prompt_tokens=num_prompt,
            num_completion_tokens=num_reply,
        )
        await turns.put_call(db, rollout, 0, reply)


async def test_tokens_that_an_endpoint_only_counted_are_counted(db: Database) -> None:
    rollout = await rollout_of(db, *PARTS)
    await reply_in_text(db, rollout, (100, 10), (150, 20))
    found = await played(db, rollout, 0)
    assert found is not None
    assert (found.num_completion_tokens, found.num_tokens) == (30, 170)


@pytest.mark.parametrize(
    ("counts", "sampled", "whole"),
    [
        (((None, None), (None, None)), None, None),
        (((100, 10), (150, None)), None, None),
        (((None, 10), (150, 20)), 30, None),
    ],
)
async def test_tokens_that_nobody_counted_are_unknown_not_0(
    db: Database, counts: tuple, sampled: int | None, whole: int | None
) -> None:
    rollout = await rollout_of(
        db,
        RewardPart(name="outcome", options={"failed": -1.0}),
        RewardPart(name="length", options={"free_tokens": 10.0}),
    )
    await reply_in_text(db, rollout, *counts)
    found = await played(db, rollout, 0)
    assert found is not None
    assert (found.num_completion_tokens, found.num_tokens) == (sampled, whole)
    assert await finish(db, end(rollout)) == -1.0
    record = await rollouts.get(db, rollout)
    assert record.reward_parts == {"outcome": -1.0, "length": None}


async def test_a_broken_function_ends_no_rollout_quietly(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a rollout that an older version began, whose functions are called at its end."""
    (tmp_path / "scoring_functions.py").write_text("def breaks(outcome): return [][0]\n")
    monkeypatch.syspath_prepend(tmp_path)
    rollout = await rollout_of(db, RewardPart(name="scoring_functions:breaks"))
    await play(db, rollout)
    with pytest.raises(RewardBroken) as broken:
        await finish(db, end(rollout))
    assert "scoring_functions:breaks" in broken.value.message
    assert rollout in broken.value.message
    assert (await rollouts.get(db, rollout)).finished_at is None
    assert await finish(db, end(rollout, stop=StopReason.INFRA_FAULT)) is None
