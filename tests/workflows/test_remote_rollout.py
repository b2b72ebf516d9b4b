"""Agents outside play rollouts: they take sessions, work elsewhere, and hand in what they made."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import openai
import pytest
from outside import client_of, outside, started, work
from program_checks import FIX, THREE, replays
from program_cluster import ProgramCluster, calling

from infra.db.nodes import sandboxes
from infra.db.programs import sessions
from infra.db.runs import campaigns
from infra.db.training.batches import load_groups
from mainspring.programs.session import SessionEnd
from mainspring.status import CampaignStatus, StopReason, Verdict
from mainspring.trajectories.samples import samples_of
from reports import one_rollout
from tests.waiting import until

PATCH = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


async def test_an_agent_outside_takes_works_and_hands_in_a_patch(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: THREE[turn]
    campaign, group, [rollout], [handle] = await started(programs)
    async with outside(programs, campaign) as agent:
        session = await agent.take(name="my agent")
        assert session["rollout"] == rollout and session["results"] == ["patch", "error"]
        assert set(session["task"]) == {"id", "kind", "issue", "image", "workdir", "files"}
        assert session["task"]["files"].keys() == {"calc.py"} and "hidden" not in str(session)
        assert datetime.fromisoformat(session["deadline"]) > datetime.now(UTC)
        root = programs.url
        assert session["base_urls"]["openai"] == f"{root}/v1"
        assert session["base_urls_with_key"]["anthropic"] == f"{root}/s/{session['key']}"
        patch = await work(session)
        assert (await agent.finish(session, patch=patch)).json()["ended_by"] == "patch"
        result = await handle.result()
        assert (result.stop_reason, result.reward, result.num_turns) == (
            StopReason.SUBMITTED,
            1.0,
            3,
        )
        # The same again is told again, also after the rollout's end; another result is not taken.
        assert (await agent.finish(session, patch=patch)).status_code == 200
        late = await agent.finish(session, patch="")
        assert late.status_code == 409 and late.json()["error"]["kind"] == "session_ended"
        assert (await agent.ask(session, "GET")).json()["state"] == "over"
    [loaded] = await load_groups(programs.workers.db, [group])
    [played] = loaded.rollouts
    [sample] = samples_of(rollout, played.calls, trained=played.trained)
    assert sample.num_action_tokens == sum(len(call.completion_ids) for call in played.calls)
    view = (await one_rollout.read(programs.workers.db, rollout)).program
    assert view is not None and view.num_calls == 3
    assert [(each.taken_by, each.ended_by) for each in view.lives] == [("my agent", "patch")]
    leases = await sandboxes.rollout_leases(programs.workers.db, rollout)
    assert {lease.purpose for lease in leases} == {"grade"}  # none to play in
    await replays(programs.workers, rollout)


async def test_a_reward_that_is_handed_in_stands(programs: ProgramCluster) -> None:
    campaign, _, [rollout], [handle] = await started(programs, options={"rewards": True})
    async with outside(programs, campaign) as agent:
        session = await agent.take()
        assert "reward" in session["results"]
        async with client_of(session) as client:
            await client.responses.create(model="m", input="hello")
        for wrong in ("1", True, None, [0.7]):
            assert (await agent.finish(session, reward=wrong)).status_code == 400
        assert (await agent.finish(session, reward=0.7)).status_code == 200
        result = await handle.result()
        assert (await agent.finish(session, reward=0.7)).status_code == 200
        assert (await agent.finish(session, reward=1.0)).status_code == 409
    assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 0.7)
    row = await programs.workers.row(rollout)
    assert (row.verdict, row.reward_parts) == (Verdict.NOT_RESOLVED, {"handed_in": 0.7})
    assert await sandboxes.rollout_leases(programs.workers.db, rollout) == []
    await replays(programs.workers, rollout)


async def test_rewards_are_taken_only_where_the_campaign_says_so(programs: ProgramCluster) -> None:
    campaign, _, _, [handle] = await started(programs)
    async with outside(programs, campaign) as agent:
        session = await agent.take()
        async with client_of(session) as client:
            await client.responses.create(model="m", input="hello")
        refused = await agent.finish(session, reward=1.0)
        assert refused.status_code == 403
        assert "options.rewards" in refused.json()["error"]["remedy"]
        assert (await agent.finish(session, patch="")).status_code == 200
    result = await handle.result()
    assert (result.reward, result.verdict) == (0.0, Verdict.NO_PATCH)


async def test_a_patch_that_is_none_is_refused_and_one_that_does_not_apply_is_graded(
    programs: ProgramCluster,
) -> None:
    campaign, _, _, [handle] = await started(programs)
    async with outside(programs, campaign) as agent:
        session = await agent.take()
        async with client_of(session) as client:
            await client.responses.create(model="m", input="hello")
        assert (await agent.finish(session, patch=7)).status_code == 400
        assert (await agent.finish(session)).status_code == 400
        assert (await agent.finish(session, patch="a", error="b")).status_code == 400
        large = await agent.finish(session, patch="x" * (16 * 1024 * 1024 + 1))
        assert large.status_code == 413 and "16777216" in large.json()["error"]["message"]
        unusual = await agent.finish(session, patch="no patch at all\n")
        assert unusual.status_code == 400 and "line 1" in unusual.json()["error"]["message"]
        misfit = PATCH.replace("a - b", "a * b")
        assert (await agent.finish(session, patch=misfit)).status_code == 200
    assert (await handle.result()).verdict is Verdict.PATCH_FAILED


async def test_clients_of_every_api_play_with_the_key_in_the_path(
    programs: ProgramCluster,
) -> None:
    campaign, _, _, [handle] = await started(programs)
    async with outside(programs, campaign) as agent:
        session = await agent.take()
        root = session["base_urls_with_key"]["gemini"]
        body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
        url = f"{root}/v1beta/models/m:generateContent"
        assert (await agent.http.post(url, json=body)).status_code == 200
        url = f"{session['base_urls_with_key']['anthropic']}/v1/messages"
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        assert (await agent.http.post(url, json=body)).status_code == 200
        await agent.finish(session, patch="")
    assert (await handle.result()).num_turns == 2


async def test_nothing_offered_is_told_with_the_time_to_ask_again(
    programs: ProgramCluster,
) -> None:
    campaign, _, _ = await programs.workers.make_rollouts(program={"kind": "remote"})
    async with outside(programs, campaign) as agent:
        for status in (CampaignStatus.RUNNING, CampaignStatus.PAUSED):
            await campaigns.set_status(programs.workers.db, campaign, status)
            answer = await agent.claim()
            assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 0
            assert answer.json()["error"].keys() == {"kind", "message", "remedy"}
        assert "paused" in answer.text
        await campaigns.set_status(programs.workers.db, campaign, CampaignStatus.CANCELLED)
        answer = await agent.claim()
        assert answer.status_code == 410 and "cancelled" in answer.json()["error"]["message"]


async def test_clients_never_get_the_same_session(programs: ProgramCluster) -> None:
    campaign, _, rollouts, handles = await started(programs, size=6)

    async def all_offered() -> bool:
        return (await sessions.waiting(programs.workers.db, campaign))[0] == len(rollouts)

    await until(all_offered)
    async with outside(programs, campaign) as agent:
        answers = await asyncio.gather(*(agent.claim() for _ in range(16)))
        taken = [each.json() for each in answers if each.status_code == 200]
        assert {each.status_code for each in answers} == {200, 429}
        assert sorted(each["rollout"] for each in taken) == sorted(rollouts)
        assert len({each["key"] for each in taken}) == len(rollouts)
        for each in taken:
            assert (await agent.finish(each, error="no time")).status_code == 200
    results = [await each.result() for each in handles]
    assert {each.reward for each in results} == {None}
    assert all("no time" in (each.fault or "") for each in results)


async def test_task_kinds_choose(programs: ProgramCluster) -> None:
    campaign, _, _, [handle] = await started(programs)
    async with outside(programs, campaign) as agent:
        session = await agent.take(task_kinds=["swe", "other"])
        assert (await agent.claim(task_kinds=["other"])).status_code == 429
        wrong: dict[str, Any]
        for wrong in ({"task_kinds": []}, {"task_kinds": "swe"}, {"name": "x" * 101}, {"name": 1}):
            assert (await agent.claim(None, **wrong)).status_code == 400
        await agent.finish(session, error="enough")
    assert (await handle.result()).stop_reason is StopReason.INFRA_FAULT


async def test_the_time_is_over_before_anything_is_handed_in(programs: ProgramCluster) -> None:
    campaign, _, [rollout], [handle] = await started(programs, rollout_timeout_s=3.0)
    async with outside(programs, campaign) as agent:
        session = await agent.take()
        async with client_of(session) as client:
            await client.responses.create(model="m", input="hello")
        result = await handle.result()
        late = await agent.finish(session, patch="")
        assert late.status_code == 409 and "limit" in late.json()["error"]["message"]
    assert (result.stop_reason, result.verdict) == (StopReason.WALL_TIME, Verdict.NO_PATCH)
    assert "handed in" in ((await programs.workers.row(rollout)).patch_note or "")
    await replays(programs.workers, rollout)


async def test_after_the_last_call_an_agent_may_still_hand_in(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: FIX if turn == 0 else calling(f"echo {turn}")
    campaign, _, [rollout], [handle] = await started(programs, step_limit=2)
    async with outside(programs, campaign) as agent:
        session = await agent.take()
        with pytest.raises(openai.BadRequestError, match="2 calls of this session are used up"):
            await work(session)
        with pytest.raises(openai.BadRequestError):  # also when it was not refused at once
            async with client_of(session) as client:
                await client.responses.create(model="m", input="more")
        assert (await agent.finish(session, patch=PATCH)).status_code == 200
    result = await handle.result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.STEP_LIMIT, 1.0, 2)
    await replays(programs.workers, rollout)


async def test_an_agent_that_asked_nothing_is_masked(programs: ProgramCluster) -> None:
    campaign, _, _, [handle] = await started(programs)
    async with outside(programs, campaign) as agent:
        session = await agent.take(name="mute")
        assert (await agent.finish(session, patch="")).status_code == 200
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert "'mute' asked nothing" in (result.fault or "")


async def test_an_engine_that_is_away_is_no_time_of_the_agent(programs: ProgramCluster) -> None:
    async def slow(turn: int) -> None:
        await asyncio.sleep(4.0)

    programs.engine.hold = slow
    campaign, _, _, [handle] = await started(programs, rollout_timeout_s=3.0)
    async with outside(programs, campaign) as agent:
        session = await agent.take()
        async with client_of(session) as client:
            await client.responses.create(model="m", input="hello")
        assert (await agent.finish(session, patch="")).status_code == 200
    assert (await handle.result()).stop_reason is StopReason.SUBMITTED
    ended = await sessions.of_rollout(programs.workers.db, session["rollout"], 0)
    assert [each.ending for each in ended] == [SessionEnd.PATCH]
