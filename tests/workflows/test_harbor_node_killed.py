"""A node's process is killed under an agent of Harbor. Apart from the tests of a shared cluster,
whose workers would take part."""

import os
from pathlib import Path

import pytest
from function_rollouts import processes_of
from harbor_rollouts import (
    BLOCKS,
    MAX_CONTEXT,
    ROOMY,
    SOLVER,
    agent,
    fixes_with,
    harbor_or_skip,
    installed,
)
from node_processes import without_node
from program_checks import Held, check_answered_once, until_asked_in

from cli.operations.machine.embedded_stack import StackInfo
from mainspring.status import StopReason
from tests.waiting import until


@pytest.mark.parametrize("name", ["solver:Solver", "codex"])
async def test_the_next_process_of_its_node_begins_another_life(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In another sandbox: the client that ran on in the first one is ended with that."""
    harbor_or_skip()
    is_client = name == "codex"
    fields = installed(name) if is_client else agent(name)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(root), str(SOLVER))))
    home = tmp_path / "node"
    async with without_node(stack, home) as (cluster, node):
        cluster.engine.say = fixes_with(name) if is_client else lambda prompt, turn: BLOCKS[turn]
        campaign, group, [rollout] = await cluster.workers.make_rollouts(
            program=fields, sandbox=ROOMY, max_context=MAX_CONTEXT
        )
        asked: list[int] = []
        held = Held(1)

        async def hold_the_second(turn: int) -> None:
            asked.append(turn)
            await held(len(asked) - 1)

        cluster.engine.hold = hold_the_second
        async with node() as process:
            handle = await cluster.workers.start(rollout, campaign, group)
            await held.reached.wait()
            process.kill()
            await process.wait()
            await until(lambda: not processes_of(rollout))
        async with node():
            await until_asked_in(cluster.workers, rollout, 1, life=1)
            held.let_go.set()
            result = await handle.result()
        assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
        program = await check_answered_once(cluster, rollout, num_calls=3, num_lives=2)
        assert program.num_replayed >= 1
        assert processes_of(rollout) == [] == list((home / "functions").glob("*/*"))
