"""Whatever is killed under a program, it plays on: answered from the store, and nothing is lost."""

import asyncio
from functools import partial

import psutil
import pytest
from program_checks import (
    EDIT,
    FIX,
    THREE,
    Held,
    check_answered_once,
    kill_sandbox,
    once,
    replays,
    sandbox_of,
    sandboxes_of,
    until_asked_in,
)
from program_cluster import ProgramCluster, calling, own_program
from resetting import reset
from temporalio.client import WorkflowFailureError

from infra.db.programs import model_requests, program_lives
from infra.db.rollouts import rollouts, turns
from mainspring.ids import rollout_workflow
from mainspring.protocol.activities import ANSWER_CALL
from mainspring.status import FaultKind, StopReason
from reports import one_rollout
from tests.waiting import until
from workflows.program import MAX_KILLED


async def test_a_sandbox_that_is_killed_while_a_reply_is_made(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: THREE[turn]
    programs.engine.hold = held = Held(1)
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=own_program())
    handle = await programs.workers.start(rollout, campaign, group)
    await held.reached.wait()
    await kill_sandbox(programs.workers, sandbox_of(rollout, 0))
    await until_asked_in(programs.workers, rollout, 1, life=1)
    held.let_go.set()
    result = await handle.result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    program = await check_answered_once(programs, rollout, num_calls=3, num_lives=2)
    assert [life.returncode for life in program.lives] == [None, 0]
    assert program.num_replayed == 2
    await replays(programs.workers, rollout)


async def test_a_sandbox_that_is_killed_while_a_command_runs(programs: ProgramCluster) -> None:
    said = (calling("cat calc.py"), calling(f"{EDIT}; sleep 1"), "done")
    programs.engine.say = lambda prompt, turn: said[turn]
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=own_program())
    handle = await programs.workers.start(rollout, campaign, group)
    await until(lambda: len(programs.engine.asked) == 2)
    await kill_sandbox(programs.workers, sandbox_of(rollout, 0))
    result = await handle.result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    program = await check_answered_once(programs, rollout, num_calls=3, num_lives=2)
    assert program.num_replayed >= 2


async def test_sandboxes_that_are_killed_at_every_call(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: THREE[turn]
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=own_program())
    killed: list[int] = []

    async def kill(turn: int) -> None:
        if turn not in killed:
            life = len(killed)
            killed.append(turn)
            await kill_sandbox(programs.workers, sandbox_of(rollout, life))

    programs.engine.hold = kill
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert killed == [0, 1, 2]
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    await check_answered_once(programs, rollout, num_calls=3, num_lives=4)


async def test_a_program_that_is_killed_from_outside_is_run_again(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = lambda prompt, turn: THREE[turn]

    async def kill() -> None:
        def running() -> list[psutil.Process]:
            return [each for each in psutil.Process().children(recursive=True) if _is_agent(each)]

        [agent] = await asyncio.to_thread(running)
        agent.kill()

    programs.engine.hold = once(kill, turn=1)
    rollout, result = await programs.play()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    program = await check_answered_once(programs, rollout, num_calls=3, num_lives=2)
    assert [life.returncode for life in program.lives] == [137, 0]


def _is_agent(process: psutil.Process) -> bool:
    try:
        return "/tmp/agent.py" in process.cmdline()[1:2]
    except psutil.NoSuchProcess:
        return False


async def test_a_reply_that_kills_its_program_ends_it_after_some_lives(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = lambda prompt, turn: calling(f"{EDIT}; kill -9 $PPID")
    rollout, result = await programs.play()
    # The tree of the last life is graded as it stands.
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 1)
    lives = MAX_KILLED + 1
    program = await check_answered_once(programs, rollout, num_calls=1, num_lives=lives)
    assert {life.returncode for life in program.lives} == {137}
    await replays(programs.workers, rollout)


async def test_a_program_that_is_always_killed_before_it_asks_gets_no_reward(
    programs: ProgramCluster,
) -> None:
    program = {"kind": "command", "options": {"command": "echo out of memory; kill -9 $$"}}
    rollout, result = await programs.play(program)
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await programs.workers.row(rollout)).fault or ""
    for word in (FaultKind.PROGRAM_SILENT, "exit code 137", "out of memory", rollout):
        assert word in fault
    lives = await program_lives.of_rollout(programs.workers.db, rollout, 0)
    assert len(lives) == MAX_KILLED + 1


@pytest.mark.parametrize("step_limit", [3, 2])
async def test_a_sandbox_that_is_lost_before_its_patch_is_stored(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch, step_limit: int
) -> None:
    """After the program ended, and after it was ended at its limit."""
    programs.engine.say = lambda prompt, turn: (FIX, *THREE)[turn]
    campaign, group, [rollout] = await programs.workers.make_rollouts(
        program=own_program(), step_limit=step_limit
    )
    get, lost = rollouts.get_patch, []

    async def lose(db, ident, epoch):
        if ident == rollout and not lost:
            lost.append(await programs.workers.held.release(sandbox_of(rollout, 0)))
        return await get(db, ident, epoch)

    monkeypatch.setattr(rollouts, "get_patch", lose)
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert lost == [True]
    assert (result.stop_reason, result.reward) == (StopReason.STEP_LIMIT, 1.0)
    await check_answered_once(programs, rollout, num_calls=step_limit, num_lives=2)


async def test_a_request_that_was_abandoned_is_asked_again_by_the_next_life(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ends while a thread of it waits for a reply; then its tree is lost."""
    held = Held(1)
    programs.engine.hold = partial(_after, held.reached, held)
    programs.engine.say = lambda prompt, turn: ("of the main thread", "beside it")[turn]
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=own_program(BESIDE))
    get, lost = rollouts.get_patch, []

    async def lose(db, ident, epoch):
        if ident == rollout and not lost:
            lost.append(await programs.workers.held.release(sandbox_of(rollout, 0)))
            held.let_go.set()
        return await get(db, ident, epoch)

    monkeypatch.setattr(rollouts, "get_patch", lose)
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert lost == [True]
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
    assert programs.engine.asked and len(set(programs.engine.asked)) == len(programs.engine.asked)
    await replays(programs.workers, rollout)


async def _after(reached: asyncio.Event, held: Held, turn: int) -> None:
    """The reply of turn 0 comes after the request of turn 1."""
    if turn == 0:
        await reached.wait()
    await held(turn)


BESIDE = f"""
import json, os, subprocess, threading, urllib.request
def ask(*texts):
    roles = ("user", "assistant", "user")
    messages = [{{"role": role, "content": text}} for role, text in zip(roles, texts)]
    body = json.dumps({{"model": "m", "messages": messages}}).encode()
    headers = {{"Content-Type": "application/json"}}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
threading.Thread(target=ask, args=("a", "b", "c"), daemon=True).start()
ask("hello")
subprocess.run(["bash", "-c", {EDIT!r}])
"""


async def test_a_cancel_ends_the_program_and_leaves_no_sandbox(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: THREE[turn]
    programs.engine.hold = held = Held(1)
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=own_program())
    handle = await programs.workers.start(rollout, campaign, group)
    await held.reached.wait()
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    held.let_go.set()
    row = await programs.workers.row(rollout)
    assert (row.stop_reason, row.reward) == (StopReason.CANCELLED, None)
    assert await sandboxes_of(programs.workers, rollout) == []
    await replays(programs.workers, rollout)


async def test_a_workflow_that_is_terminated_begins_again_with_another_key(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.engine.say = lambda prompt, turn: THREE[turn]
    programs.engine.hold = held = Held(1)
    keys = _note_keys(monkeypatch)
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=own_program())
    handle = await programs.workers.start(rollout, campaign, group)
    await held.reached.wait()
    await handle.terminate()
    db = programs.workers.db
    assert await program_lives.holder(db, keys[0]) is not None
    held.let_go.set()
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    assert (await programs.workers.row(rollout)).epoch == 1
    assert [await program_lives.holder(db, key) for key in keys] == [None] * len(keys)
    calls, _ = await turns.history(db, rollout, 1)
    assert [call.parent for call in calls] == [None, 0, 1]
    await programs.workers.reaper.reap()
    assert await sandboxes_of(programs.workers, rollout) == []


@pytest.mark.parametrize(("share", "epoch", "num_calls"), [(0.0, 1, 2), (1.0, 0, 3)])
async def test_a_reset_while_a_reply_is_made(
    programs: ProgramCluster, share: float, epoch: int, num_calls: int
) -> None:
    """To before the claim: a new epoch, which must not take the signals of the first one for its
    own. To the last task: the same life is joined."""
    programs.engine.say = lambda prompt, turn: THREE[turn]
    programs.engine.hold = held = Held(2)
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=own_program())
    handle = await programs.workers.start(rollout, campaign, group)
    await held.reached.wait()
    await reset(programs.workers, handle, share=share)
    if epoch:
        programs.engine.say = lambda prompt, turn: (FIX, "done", "of the first epoch")[turn]
    held.let_go.set()
    newest = programs.workers.client.get_workflow_handle(rollout_workflow(rollout))
    result = await newest.result()
    assert (result["stop_reason"], result["reward"]) == (StopReason.EXITED, 1.0)
    row = await programs.workers.row(rollout)
    assert (row.epoch, row.num_turns, row.fault) == (epoch, num_calls, None)
    known = await model_requests.history(programs.workers.db, rollout, epoch)
    assert [each.number for each in known] == list(range(num_calls))
    history = await newest.fetch_history()
    answering = [
        event
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == ANSWER_CALL.name
    ]
    assert len(answering) == num_calls
    program = (await one_rollout.read(programs.workers.db, rollout)).program
    assert program is not None and [life.returncode for life in program.lives] == [0]
    await replays(programs.workers, rollout)
    await programs.workers.reaper.reap()
    assert await sandboxes_of(programs.workers, rollout) == []


def _note_keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    keys: list[str] = []
    begin = program_lives.begin

    async def noted(*about):
        keys.append(await begin(*about))
        return keys[-1]

    monkeypatch.setattr(program_lives, "begin", noted)
    return keys
