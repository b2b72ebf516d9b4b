"""An agent of Harbor plays a rollout; only the replies are scripted, at the engine's seam."""

import asyncio
import json
import shutil
from collections.abc import Iterator

import pytest
from function_rollouts import processes_of
from harbor_rollouts import (
    BLOCKS,
    MAX_CONTEXT,
    ROOMY,
    SHELLS,
    SOLVER,
    agent,
    fixes_with,
    harbor_or_skip,
    installed,
)
from program_checks import EDIT, check_answered_once
from program_cluster import ProgramCluster

from infra.bundles.store import bundle_of
from infra.db.programs import program_lives
from infra.environments.swe import SweWorld
from mainspring.config.agents.agent import AgentConfig
from mainspring.environments.protocol import Finished
from mainspring.ids import RolloutId
from mainspring.status import StopReason
from reports import one_rollout


@pytest.fixture(autouse=True)
def harbor_is_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    harbor_or_skip()
    monkeypatch.syspath_prepend(str(SOLVER))
    yield


async def fault_of(cluster: ProgramCluster, rollout: RolloutId) -> str:
    return (await cluster.workers.row(rollout)).fault or ""


async def test_a_class_of_your_own_fixes_the_issue(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: BLOCKS[turn]
    rollout, result = await programs.play(agent("solver:Solver", timeout_s=10), sandbox=ROOMY)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3), (
        await fault_of(programs, rollout)
    )
    await check_answered_once(programs, rollout, num_calls=3, num_lives=1)
    assert processes_of(rollout) == []
    assert "a - b" in programs.engine._tokenizer.decode(list(programs.engine.asked[1]))


async def test_an_agent_that_uses_the_whole_environment(programs: ProgramCluster) -> None:
    """Files, folders, users, timeouts, the model port that it does not have."""
    programs.engine.say = lambda prompt, turn: "done"
    rollout, result = await programs.play(agent("acting_harbor:Mover"), sandbox=ROOMY)
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0), await fault_of(
        programs, rollout
    )


@pytest.mark.parametrize("name", SHELLS)
async def test_an_installed_agent_fixes_the_issue(programs: ProgramCluster, name: str) -> None:
    fields = installed(name)
    programs.engine.say = fixes_with(name)
    rollout, result = await programs.play(fields, sandbox=ROOMY, max_context=MAX_CONTEXT)
    [life] = await program_lives.of_rollout(programs.workers.db, rollout, 0)
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0), (
        await fault_of(programs, rollout),
        life.output,
    )
    assert life.returncode == 0
    view = await one_rollout.read(programs.workers.db, rollout)
    assert view.program is not None and "a - b" in "".join(turn.told for turn in view.turns)
    bundle = bundle_of(AgentConfig.model_validate(fields))
    assert bundle is not None
    assert [each.bundle_sha256 for each in view.program.lives] == [bundle.manifest.sha256]
    assert processes_of(rollout) == []


async def test_terminus_works_in_a_terminal_of_the_sandbox(programs: ProgramCluster) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("terminus-2 needs tmux in the sandbox, and this machine has none")

    def say(prompt: str, turn: int) -> str:
        commands = [{"keystrokes": f"{EDIT}\n", "duration": 0.5}] if turn == 0 else []
        plan = {"analysis": "a", "plan": "p", "commands": commands, "task_complete": turn > 0}
        return json.dumps(plan)

    programs.engine.say = say
    rollout, result = await programs.play(
        agent("terminus-2"), sandbox=ROOMY, max_context=MAX_CONTEXT
    )
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3), (
        await fault_of(programs, rollout)
    )


async def test_a_class_that_extends_harbors_uses_its_bundle(programs: ProgramCluster) -> None:
    fields = installed("acting_harbor:OwnMini", bundle="mini-swe-agent")
    programs.engine.say = fixes_with("mini-swe-agent")
    rollout, result = await programs.play(fields, sandbox=ROOMY, max_context=MAX_CONTEXT)
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0), await fault_of(
        programs, rollout
    )


async def test_a_client_in_the_image_asks_at_the_model_port(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves a process that would spoil the tree, and ends with an error: the tree counts."""
    finish = SweWorld.finish

    async def finish_late(world: SweWorld) -> Finished:
        await asyncio.sleep(5)  # longer than what was left behind would wait
        return await finish(world)

    monkeypatch.setattr(SweWorld, "finish", finish_late)
    programs.engine.say = lambda prompt, turn: EDIT
    rollout, result = await programs.play(
        agent("acting_harbor:InImage", in_image=True), sandbox=ROOMY
    )
    [life] = await program_lives.of_rollout(programs.workers.db, rollout, 0)
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0), (
        await fault_of(programs, rollout),
        life.output,
    )
    assert "its last words" in (life.output or "") and life.returncode == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"agent": "acting_harbor:Raises"}, "raised KeyError: 'move'"),
        ({"agent": "acting_harbor:NeverAsks"}, "returned before a request of it was answered"),
        ({"agent": "acting_harbor:InImage"}, "is an installed one"),
        ({"agent": "acting_harbor:NotOne"}, "extends Harbor's BaseAgent"),
        ({"agent": "acting_harbor:absent"}, "cannot be imported"),
        ({"agent": "terminus-2", "nonsense": 1}, "Unknown option 'nonsense'"),
    ],
)
async def test_one_that_cannot_play_masks_by_name(
    programs: ProgramCluster, options: dict, told: str
) -> None:
    """On a node that was asked by no command."""
    programs.engine.say = lambda prompt, turn: "done"
    fields = {"kind": "harbor", "tool_parser": "none", "options": options}
    rollout, result = await programs.play(fields, sandbox=ROOMY)
    fault = await fault_of(programs, rollout)
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert told in fault and f"Harbor's agent {options['agent']!r}" in fault
