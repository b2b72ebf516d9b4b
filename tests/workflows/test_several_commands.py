"""A reply may ask for several commands: each runs once, in its order, also when a node dies."""

import pytest
from scripted import SUBMIT

from infra.db.nodes import sandboxes
from infra.db.rollouts import turns
from mainspring.agents.bash import BashAgent
from mainspring.agents.protocol import Command, FormatError
from mainspring.config.sandbox import SandboxConfig
from mainspring.ids import SandboxId
from mainspring.programs.reply import Reply
from mainspring.status import StopReason
from mainspring.trajectories.turns import Call, Execution


class LinesAgent(BashAgent):
    """Each line of a reply is a command; what they printed is told in one message."""

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        return tuple(map(Command, reply.text.splitlines())) or FormatError(0)

    def after(self, reply: Call, executions: list[Execution]) -> str:
        return " | ".join(each.output.decode().strip() for each in executions)


KIND = f"{__name__}:LinesAgent"
SUBMISSION = SUBMIT.split("\n")[-2]
REPLIES = (
    "echo 7 > stamp; cat stamp\necho a >> ran\necho b >> ran",
    "echo c >> ran\ncat stamp; cat ran",
    f"sed -i 's/a - b/a + b/' calc.py\n{SUBMISSION}\necho never >> ran",
)


@pytest.mark.parametrize("every", [None, 1], ids=["replayed", "from a snapshot"])
async def test_a_node_dies_between_the_commands_of_a_turn(cluster, monkeypatch, every) -> None:
    store = turns.put_execution
    doomed = [(0, 1), (1, 0)]

    async def store_and_die(db, rollout, epoch, execution):
        done = await store(db, rollout, epoch, execution)
        if (execution.call, execution.index) in doomed:
            doomed.remove((execution.call, execution.index))
            for sandbox in cluster.held.ids():
                await cluster.held.release(SandboxId(sandbox))
            raise OSError("the node died")
        return done

    monkeypatch.setattr(turns, "put_execution", store_and_die)
    cluster.policy.say = lambda rollout, turn: REPLIES[turn]
    campaign, group, [rollout] = await cluster.make_rollouts(
        agent=KIND, sandbox=SandboxConfig(snapshot_every_turns=every)
    )
    result = await (await cluster.start(rollout, campaign, group)).result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 3)
    assert not doomed and (await cluster.row(rollout)).epoch == 0
    calls, executions = await turns.history(cluster.db, rollout, 0)
    ran = [(each.call, each.index) for each in executions]
    assert ran == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert executions[4].output == b"7\na\nb\nc\n"
    told = bytes(calls[2].prompt_ids).decode()
    assert " | " in told and "a\nb\nc" in told
    assert len(await sandboxes.rollout_leases(cluster.db, rollout)) >= 3
