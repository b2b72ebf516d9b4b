"""Tools in Python in rollouts: what is stored and told of their calls, and what they leave."""

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from scripted import called as call
from scripted import saying
from temporalio.client import WorkflowFailureError

from infra.db.nodes import sandboxes
from infra.db.rollouts import turns
from infra.functions.labelled import LABEL
from mainspring.agents.tools.protocol import Misused
from mainspring.config.sandbox import SandboxConfig
from mainspring.ids import RolloutId
from mainspring.programs.request import ToolSpec
from mainspring.status import StopReason
from mainspring.tasks.any_task import AnyTask
from tests.processes import running
from tests.waiting import until

OWN_TOOL = Path(__file__).parents[2] / "examples" / "own-tool"
HERE = __name__.rpartition(".")[2]
CHECKLIST = "checklist:Checklist"


class Ask:
    """Fails as it is told."""

    spec = ToolSpec(
        name="ask",
        parameters={"type": "object", "properties": {"what": {"type": "string"}}},
    )

    async def create(self, task: AnyTask, rollout: RolloutId) -> None:
        pass

    async def execute(self, arguments: Mapping[str, Any]) -> str:
        if arguments.get("what") == "raise":
            raise KeyError("nothing")
        if arguments.get("what") == "hang":
            await asyncio.sleep(3600)
        if arguments.get("what") == "misuse":
            raise Misused("ask: ask otherwise")
        return "answered"

    async def release(self) -> None:
        pass


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(OWN_TOOL))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    sys.modules.pop("checklist", None)


def playing(*tools: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "tools", "tools": ["bash", "submit", *tools], **fields}


@pytest.mark.parametrize("turns_per_activity", [1, 4])
async def test_calls_are_stored_told_and_ended_with_the_rollout(
    cluster: Cluster, turns_per_activity: int
) -> None:
    cluster.policy.say = saying(
        call("checklist", add="look") + call("bash", command="cat calc.py"),
        call("checklist", done=9) + call("checklist", done=2),
        call("checklist", doing="nothing"),
        call("submit"),
    )
    rollout, result = await cluster.play(
        program=playing(CHECKLIST),
        turns_per_activity=turns_per_activity,
        sandbox=SandboxConfig(snapshot_every_turns=1),
    )
    assert (result.stop_reason, result.num_turns) == (StopReason.SUBMITTED, 4)
    calls, ran = await turns.history(cluster.db, rollout, 0)
    assert [(each.call, each.index, each.returncode) for each in ran] == [
        *((0, 0, 0), (0, 1, 0), (1, 0, 2), (1, 1, 0), (3, 0, 0)),
    ]
    assert ran[0].command == '#tool checklist {"add": "look"}'
    assert ran[0].output == b"1. [ ] Understand: add subtracts\n2. [ ] look"
    assert ran[3].output == b"1. [ ] Understand: add subtracts\n2. [x] look"
    prompts = [bytes(each.prompt_ids).decode() for each in calls]
    assert "2. [ ] look" in prompts[1] and "there is no entry 9" in prompts[2]
    assert "Additional properties are not allowed" in prompts[3]
    assert _processes(rollout) == []


async def test_a_call_that_is_typed_as_a_command_is_checked_and_run_as_a_call(
    cluster: Cluster,
) -> None:
    cluster.policy.say = saying(
        call("bash", command='#tool checklist {"add": "look"}'),
        call("bash", command='#tool checklist {"add": 3}'),
        call("bash", command="#tool checklist look"),
        call("bash", command='#tool other {"add": "look"}\necho a comment'),
        call("submit"),
    )
    rollout, _ = await cluster.play(program=playing(CHECKLIST))
    _, ran = await turns.history(cluster.db, rollout, 0)
    assert [each.returncode for each in ran] == [0, 2, 2, 0, 0]
    assert b"2. [ ] look" in ran[0].output and ran[3].output == b"a comment\n"
    assert b"3 is not of type 'string'" in ran[1].output
    assert b"no JSON object" in ran[2].output


async def test_what_a_tool_raises_ends_the_campaign_by_its_name(cluster: Cluster) -> None:
    cluster.policy.say = saying(call("ask", what="misuse"), call("ask", what="raise"))
    rollout, result = await cluster.play(program=playing(f"{HERE}:Ask"))
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert result.broken is not None
    assert "tool 'ask': execute raised KeyError: 'nothing'" in result.broken
    leases = await sandboxes.rollout_leases(cluster.db, rollout)
    assert {lease.status.value for lease in leases} == {"closed"}
    assert _processes(rollout) == []


async def test_a_call_that_takes_too_long_is_told_and_the_next_one_runs(cluster: Cluster) -> None:
    cluster.policy.say = saying(call("ask", what="hang"), call("ask"), call("submit"))
    rollout, result = await cluster.play(program=playing(f"{HERE}:Ask", command_timeout_s=5.0))
    assert result.stop_reason is StopReason.SUBMITTED
    _, ran = await turns.history(cluster.db, rollout, 0)
    assert [(each.timed_out, each.output) for each in ran[:2]] == [
        (True, b""),
        (False, b"answered"),
    ]


async def test_a_cancel_in_a_call_leaves_nothing(cluster: Cluster) -> None:
    cluster.policy.say = saying(call("ask", what="hang"))
    campaign, group, [rollout] = await cluster.make_rollouts(program=playing(f"{HERE}:Ask"))
    handle = await cluster.start(rollout, campaign, group)
    await until(lambda: bool(_processes(rollout)))
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert _processes(rollout) == []
    assert await sandboxes.open_leases(cluster.db, next(iter(cluster.nodes))) == []


@pytest.mark.parametrize("kind", ["tools", "react"])
async def test_a_task_is_played_with_the_tools_that_its_row_names(
    cluster: Cluster, kind: str
) -> None:
    said = {
        "tools": call("checklist", add="look"),
        "react": f"Thought: x\nAction: checklist\nAction Input: {json.dumps({'add': 'look'})}",
    }[kind]
    done = {"tools": call("submit"), "react": "Thought: x\nAction: submit"}[kind]
    cluster.policy.say = saying(said, done)
    campaign, group, [rollout] = await cluster.make_rollouts(
        program={"kind": kind}, tools=("submit", CHECKLIST), further={"own": (CHECKLIST,)}
    )
    result = await (await cluster.start(rollout, campaign, group)).result()
    assert (result.stop_reason, result.num_turns) == (StopReason.SUBMITTED, 2)
    [first, *_], ran = await turns.history(cluster.db, rollout, 0)
    assert ran[0].output.endswith(b"2. [ ] look")
    told = bytes(first.prompt_ids).decode()
    assert "checklist" in told and "search" not in told


def _processes(rollout: RolloutId) -> list[int]:
    mark = f"/tools.{rollout.replace('/', '.')}."
    return [each.pid for each in running(lambda each: mark in each.environ().get(LABEL, ""))]
