"""Programs that ask several things at once: numbers, branches, limits, and what is trained."""

import asyncio

import pytest
from program_checks import (
    EDIT,
    check_answered_once,
    kill_sandbox,
    lose_before_patch,
    once,
    replays,
    sandbox_of,
)
from program_cluster import ProgramCluster, own_program

from infra.db.programs import model_requests
from infra.db.rollouts import turns
from infra.db.training.batches import BatchRollout, load_groups
from mainspring.ids import RolloutId
from mainspring.programs.profiles.command import CommandProfile
from mainspring.programs.record import BranchKind
from mainspring.status import StopReason
from mainspring.trajectories.samples import samples_of
from reports import one_rollout
from tests.waiting import until

ASKING = """
import json, os, subprocess, threading, time, urllib.request
def ask(*texts, system="You fix issues.", tools=True):
    roles = ("user", "assistant") * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts)]
    body = {"model": "m", "messages": [{"role": "system", "content": system}, *messages]}
    if tools:
        parameters = {"type": "object", "properties": {}}
        body["tools"] = [{"type": "function", "function": {"name": "t", "parameters": parameters}}]
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    headers = {"Content-Type": "application/json"}
    while True:
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)["choices"][0]["message"]["content"]
        except (OSError, ValueError):
            time.sleep(0.5)
"""


def asking(*lines: str) -> dict:
    fix = f"subprocess.run(['bash', '-c', {EDIT!r}])"
    return own_program("\n".join([ASKING, *lines, fix]))


async def played(cluster: ProgramCluster, rollout: RolloutId) -> BatchRollout:
    row = await cluster.workers.row(rollout)
    [group] = await load_groups(cluster.workers.db, [row.group])
    return group.rollouts[0]


async def kinds(cluster: ProgramCluster, rollout: RolloutId) -> list[BranchKind]:
    return [each.kind for each in await model_requests.history(cluster.workers.db, rollout, 0)]


async def test_two_requests_at_once_and_a_sub_agent(programs: ProgramCluster) -> None:
    """The threads' requests are under way together; the sub-agent has a branch of its own, and the
    agent continues its own after it."""
    meeting = asyncio.Barrier(2)

    async def meet(turn: int) -> None:
        if turn == 0 and len(programs.engine.asked) < 2:
            await meeting.wait()

    programs.engine.hold = meet
    programs.engine.say = lambda prompt, turn: f"reply {len(programs.engine.asked)}"
    program = asking(
        "said = {}",
        "def one(name): said[name] = ask(name)",
        "both = [threading.Thread(target=one, args=(name,)) for name in ('left', 'right')]",
        "[each.start() for each in both]",
        "[each.join() for each in both]",
        "ask('look', system='You search.')",
        "ask('left', said['left'], 'go on')",
        "ask('right', said['right'], 'go on')",
    )
    rollout, result = await programs.play(program)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 5)
    calls, _ = await turns.history(programs.workers.db, rollout, 0)
    assert [call.parent for call in calls[:3]] == [None, None, None]
    assert {call.parent for call in calls[3:]} == {0, 1}
    main, agent = BranchKind.MAIN, BranchKind.AGENT
    assert await kinds(programs, rollout) == [main, main, agent, main, main]
    batch = await played(programs, rollout)
    assert batch.trained is None
    assert len(samples_of(rollout, batch.calls, trained=batch.trained)) == 3
    await check_answered_once(programs, rollout, num_calls=5, num_lives=1)


async def test_sub_agents_and_titles_are_trained_where_the_campaign_chooses_them(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommandProfile, "offers_tools", True)
    programs.engine.say = lambda prompt, turn: f"reply {len(programs.engine.asked)}"
    program = asking(
        "ask('a title, please', tools=False)",
        "said = ask('fix it')",
        "ask('look', system='You search.')",
        "ask('fix it', said, 'go on')",
    )
    for train, trained in (
        (None, {1, 2, 3}),
        (["main"], {1, 3}),
        (["side"], {0}),
        (["main", "agent", "side"], None),
    ):
        chosen = {} if train is None else {"train": train}
        rollout, result = await programs.play({**program, **chosen})
        assert (result.reward, result.num_turns) == (1.0, 4)
        side, main, agent = BranchKind.SIDE, BranchKind.MAIN, BranchKind.AGENT
        assert await kinds(programs, rollout) == [side, main, agent, main]
        assert (await played(programs, rollout)).trained == trained


async def test_what_the_last_life_did_not_ask_is_kept_and_not_trained(
    programs: ProgramCluster,
) -> None:
    """The first prompt is another one in each life; the second is the same."""
    campaign, group, [rollout] = await programs.workers.make_rollouts(
        program=asking("ask(f'my name is {os.urandom(8).hex()}')", "ask('fix it')", "ask('done?')")
    )

    async def kill() -> None:
        await kill_sandbox(programs.workers, sandbox_of(rollout, 0))

    async def kill_at_the_last(turn: int) -> None:
        if len(programs.engine.asked) == 2:
            await first(turn)

    first = once(kill, turn=0)
    programs.engine.hold = kill_at_the_last
    handle = await programs.workers.start(rollout, campaign, group)
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
    known = await model_requests.history(programs.workers.db, rollout, 0)
    assert [(each.first_life, each.life) for each in known] == [(0, 0), (0, 1), (0, 1), (1, 1)]
    batch = await played(programs, rollout)
    assert batch.trained == {1, 2, 3} and batch.untrained == {0}
    [*samples] = samples_of(rollout, batch.calls, trained=batch.trained)
    tokens = sum(len(call.completion_ids) for call in batch.calls if call.number != 0)
    assert sum(sample.num_action_tokens for sample in samples) == tokens
    program = (await one_rollout.read(programs.workers.db, rollout)).program
    assert program is not None
    assert (program.num_calls, program.num_replayed, program.num_abandoned) == (4, 2, 1)


async def test_a_request_that_was_abandoned_is_asked_again_by_the_next_life(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ends while a thread of it waits for a reply; then its tree is lost."""
    program = asking(
        "beside = ('a', 'b', 'c')",
        "threading.Thread(target=ask, args=beside, daemon=True).start()",
        "ask('hello')",
    )
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=program)
    lost = lose_before_patch(programs, monkeypatch, rollout)
    beside_asks = asyncio.Event()

    async def hold(turn: int) -> None:
        if turn == 0:
            await beside_asks.wait()
        elif not lost:
            beside_asks.set()
            await until(lambda: bool(lost))

    programs.engine.hold = hold
    programs.engine.say = lambda prompt, turn: ("of the main thread", "beside it")[turn]
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert lost == [True]
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
    assert programs.engine.asked and len(set(programs.engine.asked)) == len(programs.engine.asked)
    await replays(programs.workers, rollout)


async def test_more_requests_a_minute_than_the_campaign_allows_end_the_program(
    programs: ProgramCluster,
) -> None:
    program = {
        **asking(f"subprocess.run(['bash', '-c', {EDIT!r}])", "while True: ask(str(time.time()))"),
        "requests_per_minute": 3,
    }
    _, result = await programs.play(program, step_limit=20)
    assert (result.stop_reason, result.reward) == (StopReason.REQUEST_RATE, 1.0)
    assert result.num_turns == len(programs.engine.asked) == 3


async def test_no_more_requests_are_answered_at_once_than_the_campaign_allows(
    programs: ProgramCluster,
) -> None:
    at_once = most = 0

    async def count(turn: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if len(programs.engine.asked) == 0:
            # The others are stored and told of; only two of them are answered now.
            await until(everything_is_asked)
        at_once -= 1

    async def everything_is_asked() -> bool:
        known = await model_requests.history(programs.workers.db, rollout, 0)
        return most == 2 and len(known) == 5

    programs.engine.hold = count
    program = {
        **asking(
            "all = [threading.Thread(target=ask, args=(str(n),)) for n in range(5)]",
            "[each.start() for each in all]",
            "[each.join() for each in all]",
        ),
        "parallel_requests": 2,
    }
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=program)
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 5)
    assert most == 2
