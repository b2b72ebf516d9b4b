"""The trace of a stored rollout: its turns, replies, commands, judgements and grade, in time."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain

import pytest
from store_records import CAMPAIGN, add_group, begin_campaign, call, execution, finish

from infra.db.database import Database
from infra.db.nodes import sandboxes
from infra.db.rollouts import groups, judgements, rollouts, turns
from infra.db.rollouts.judgements import JudgeQuestion
from infra.db.training import steps
from mainspring.config.agents.judges import QuestionScope
from mainspring.ids import NodeId, RolloutId, SandboxId
from mainspring.programs.request import ChatMessage, ModelRequest, Role
from mainspring.rewards.votes import Vote
from mainspring.status import SandboxPurpose, Verdict
from mainspring.tasks.criterion import GradeReport
from mainspring.training.tracking import TRACES, TrackedModel
from mainspring.trajectories.spans import TEXT_CHARS, SpanKind, TraceSpan
from reports.program_view import ShownRequest
from reports.tracked import rollout_trace
from reports.tracked.step_traces import StepTraces, chosen_rollouts

MODEL = TrackedModel("uid-1", "tiny")
LONG = b"begin" + b"x" * 100_000 + b"end"


async def play(db: Database, rollout: RolloutId, reward: float | None) -> None:
    """Two turns with a command each, a judgement of the first and one of the whole, a grading."""
    epoch = (await rollouts.claim(db, rollout, "run-a")).epoch
    start = 0
    for number in (0, 1):
        reply = call(number, start)
        start = reply.end
        await turns.put_call(db, rollout, epoch, reply)
        await turns.put_intent(db, rollout, epoch, number, 0, f"echo {number}")
        await turns.put_execution(db, rollout, epoch, execution(number, LONG))
    for of, judged in ((QuestionScope.TURNS, 0), (QuestionScope.ROLLOUT, 0)):
        question = JudgeQuestion(rollout, epoch, "critic", of, judged)
        votes = [Vote("good", 1.0), Vote("no number", None)]
        for number, vote in enumerate(votes):
            await judgements.put_vote(db, question, number, vote)
        await judgements.put(db, question, prompt_sha256="p", score=1.0, given=votes, missing=None)
    box, node = SandboxId(f"{rollout.replace('/', '.')}.grade1"), NodeId("node-1")
    await sandboxes.open_lease(
        db, box, rollout, epoch, purpose=SandboxPurpose.GRADE, node=node, backend="bubblewrap"
    )
    await sandboxes.close_lease(db, box, node)
    verdict = Verdict.RESOLVED if reward else Verdict.NOT_RESOLVED
    report = GradeReport(judge="exit_code", returncode=0, note="all tests passed")
    await rollouts.put_grade(db, rollout, epoch, verdict, "log", None, report)
    await finish(db, rollout, epoch, reward)


async def traced(db: Database) -> TraceSpan:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, 1.0)
    played = await rollout_trace.read(db, rollout)
    trace = rollout_trace.trace_of(played, MODEL)
    assert trace == rollout_trace.trace_of(await rollout_trace.read(db, rollout), MODEL)
    assert trace.tags["mainspring.rollout"] == rollout and trace.tags["mainspring.verdict"]
    return trace.root


async def test_a_rollout_is_a_tree_of_what_happened(db: Database) -> None:
    root = await traced(db)
    assert [child.name for child in root.children] == [
        "turn 1",
        "turn 2",
        "judge critic rollout 0",
        "grade",
    ]
    first, second = root.children[:2]
    assert [child.kind for child in first.children] == [
        SpanKind.REPLY,
        SpanKind.COMMAND,
        SpanKind.JUDGE,
    ]
    reply, command, judge = first.children
    assert (reply.attributes["input_tokens"], reply.attributes["output_tokens"]) == (7, 5)
    assert reply.attributes["model"] == "tiny" and reply.inputs["new messages"] == "Fix it."
    assert reply.outputs["reply"] == "reply 0 of "
    assert command.inputs == {"command": "echo 0"} and command.attributes["exit_code"] == 0
    assert judge.attributes["vote.1"] == 1.0 and "vote.2" not in judge.attributes
    assert judge.outputs == {"vote 1": "good", "vote 2": "no number"}
    # What the second reply was shown is what the first command printed.
    assert second.children[0].inputs["new messages"] == command.outputs["output"]
    grade = root.children[-1]
    assert grade.outputs == {"verdict": "resolved", "reason": "all tests passed"}
    assert root.attributes["reward"] == 1.0 and root.attributes["seconds.generate"] == 1.5


async def test_times_are_those_of_the_store_and_texts_are_bounded(db: Database) -> None:
    before = datetime.now(UTC)
    root = await traced(db)
    spans = [root, *root.children, *chain(*(child.children for child in root.children))]
    assert all(root.start <= each.start <= each.end <= root.end for each in spans)
    first = root.children[0]
    # The reply took a quarter of a second by the engine's account, and ended when it was stored.
    reply = first.children[0]
    assert (reply.end - reply.start).total_seconds() == pytest.approx(0.25)
    assert before < reply.end <= first.children[1].start
    texts = [
        str(text) for each in spans for text in (*each.inputs.values(), *each.outputs.values())
    ]
    assert max(map(len, texts)) == TEXT_CHARS


async def test_a_masked_rollout_has_its_reason_and_no_grade(db: Database) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    epoch = (await rollouts.claim(db, rollout, "run-a")).epoch
    await finish(db, rollout, epoch, None)
    trace = rollout_trace.trace_of(await rollout_trace.read(db, rollout), MODEL)
    assert trace.root.error == "the node died" and trace.root.children == ()
    assert "reward" not in trace.root.attributes


async def test_a_programs_reply_shows_what_its_request_added(db: Database) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, 1.0)
    begun = (ChatMessage(role=Role.USER, text="Please fix it."),)
    told = ChatMessage(role=Role.TOOL, text="it failed")
    more = (*begun, ChatMessage(role=Role.ASSISTANT, text="reply 0"), told)
    requests = {
        number: ShownRequest("main", ModelRequest(messages=messages))
        for number, messages in enumerate((begun, more))
    }
    played = replace(await rollout_trace.read(db, rollout), requests=requests)
    first, second = rollout_trace.trace_of(played, MODEL).root.children[:2]
    assert first.children[0].inputs == {"new messages": "[user] Please fix it."}
    assert second.children[0].inputs == {"new messages": "[tool] it failed"}


async def test_another_epoch_is_another_trace(db: Database) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, 0.0)
    played = await rollout_trace.read(db, rollout)
    later = replace(played, record=replace(played.record, epoch=7))
    other = TrackedModel("uid-2", "tiny")
    ids = {
        rollout_trace.trace_of(played, MODEL).id,
        rollout_trace.trace_of(later, MODEL).id,
        rollout_trace.trace_of(played, other).id,
    }
    assert len(ids) == 3


async def test_a_step_has_as_many_traces_as_were_asked_for(db: Database) -> None:
    await begin_campaign(db)
    group, [best, masked, worst] = await add_group(db, size=3)
    for rollout, reward in ((best, 1.0), (worst, 0.0), (masked, None)):
        if reward is None:
            await finish(db, rollout, (await rollouts.claim(db, rollout, "a")).epoch, None)
        else:
            await play(db, rollout, reward)
    await groups.finish_group(db, group)
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [group]
    await steps.commit_step(db, CAMPAIGN, 1, metrics={}, policy_path="/v1", checkpoint="/v1")
    for num, expected in ((1, [best]), (2, [best, worst]), (9, [best, worst, masked])):
        reader = StepTraces(num)
        [point] = await reader.ids(db, CAMPAIGN)
        assert (point.series, point.step) == (TRACES, 1)
        [step] = await reader.read(db, CAMPAIGN, [point])
        assert [trace.tags["mainspring.rollout"] for trace in step.traces] == expected
    gone = replace(point, time_ms=point.time_ms + 1)
    assert await reader.read(db, CAMPAIGN, [gone]) == []


def test_the_chosen_ones_are_spread_over_rewards() -> None:
    rewards = {"a": 0.5, "b": None, "c": 1.0, "d": 0.0, "e": 1.0, "f": None}
    pairs = [(RolloutId(name), reward) for name, reward in rewards.items()]
    assert chosen_rollouts(pairs, 4) == ["c", "d", "b", "e"]
    assert chosen_rollouts(pairs, 99) == ["c", "d", "b", "e", "a", "f"]
    assert chosen_rollouts(pairs, 0) == []
    assert chosen_rollouts([], 3) == []
