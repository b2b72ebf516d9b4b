"""Sandboxes and programs that are killed at a bad moment or again and again, and resets of the
workflow: the program plays on, answered from the store, or ends in a way that is told."""

import pytest
from players import PROGRAM
from program_checks import (
    EDIT,
    FIX,
    THREE,
    Hold,
    check_answered_once,
    check_fixed,
    kill_sandbox,
    lose_before_patch,
    replays,
    sandbox_of,
    sandboxes_of,
)
from program_cluster import ProgramCluster, calling, own_program
from resetting import reset

from infra.db.programs import model_requests, program_lives
from mainspring.ids import rollout_workflow
from mainspring.protocol.activities import ANSWER_CALL
from mainspring.status import FaultKind, StopReason
from reports import one_rollout
from tests.waiting import until
from workflows.program import MAX_KILLED


async def test_a_sandbox_that_is_killed_while_a_command_runs(programs: ProgramCluster) -> None:
    said = (calling("cat calc.py"), calling(f"{EDIT}; sleep 1"), "done")
    programs.engine.say = lambda prompt, turn: said[turn]
    play = await PROGRAM.start(programs)
    await until(lambda: len(programs.engine.asked) == 2)
    await kill_sandbox(programs.workers, sandbox_of(play.rollout, 0))
    program = await check_fixed(programs, play.rollout, await play.result(), num_lives=2)
    assert program.num_replayed >= 2


async def test_sandboxes_that_are_killed_at_every_call(programs: ProgramCluster) -> None:
    programs.engine.say = PROGRAM.say
    killed: list[int] = []

    async def kill(turn: int) -> None:
        if turn not in killed:
            life = len(killed)
            killed.append(turn)
            await kill_sandbox(programs.workers, sandbox_of(rollout, life))

    programs.engine.hold = kill
    campaign, group, [rollout] = await PROGRAM.make(programs)
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert killed == [0, 1, 2]
    await check_fixed(programs, rollout, result, num_lives=4)


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
    lost = lose_before_patch(programs, monkeypatch, rollout)
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert lost == [True]
    assert (result.stop_reason, result.reward) == (StopReason.STEP_LIMIT, 1.0)
    await check_answered_once(programs, rollout, num_calls=step_limit, num_lives=2)


@pytest.mark.parametrize(("share", "epoch", "num_calls"), [(0.0, 1, 2), (1.0, 0, 3)])
async def test_a_reset_while_a_reply_is_made(
    programs: ProgramCluster, share: float, epoch: int, num_calls: int
) -> None:
    """To before the claim: a new epoch, which must not take the signals of the first one for its
    own. To the last task: the same life is joined."""
    programs.engine.say = PROGRAM.say
    held = Hold(programs.engine, after=2)
    play = await PROGRAM.start(programs)
    await held.reached.wait()
    await reset(programs.workers, play.handle, share=share)
    if epoch:
        programs.engine.say = lambda prompt, turn: (FIX, "done", "of the first epoch")[turn]
    held.let_go.set()
    rollout = play.rollout
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
