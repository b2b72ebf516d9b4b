"""Agents of Mainspring by name play rollouts: tool calls, steps with a memory, one patch; a task
chooses among the sections of its campaign."""

import pytest
from cluster import Cluster
from scripted import called as call
from scripted import saying

from infra.db.rollouts import turns
from mainspring.config.agents.agent import AgentConfig, ReactConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import TaskId
from mainspring.status import StopReason
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.samples import samples_of
from reports.collect import collect
from reports.summary import summary

FIX = {"path": "calc.py", "old": "a - b", "new": "a + b"}


@pytest.mark.parametrize("turns_per_activity", [1, 4])
async def test_tools_are_called_alone_and_together(
    cluster: Cluster, turns_per_activity: int
) -> None:
    cluster.policy.say = saying(
        "I look." + call("view", path="calc.py") + call("search", pattern="nothing at all"),
        call("fly", to="the moon"),
        call("edit", **FIX | {"old": "a * b"}),
        call("edit", **FIX) + call("submit"),
    )
    rollout, result = await cluster.play(agent="tools", turns_per_activity=turns_per_activity)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 4)
    calls, executions = await turns.history(cluster.db, rollout, 0)
    assert [(ran.call, ran.index, ran.returncode) for ran in executions] == [
        *((0, 0, 0), (0, 1, 1), (2, 0, 1), (3, 0, 0), (3, 1, 0)),
    ]
    prompts = [bytes(each.prompt_ids).decode() for each in calls]
    assert prompts[0].startswith("<bash>\n<view>\n<edit>\n<search>\n<submit>\n")
    assert "1\tdef add" in prompts[1] and "<returncode>1</returncode>" in prompts[1]
    assert "there is no tool 'fly'" in prompts[2] or "'fly' was not offered" in prompts[2]
    assert "The old text is not in calc.py." in prompts[3]
    assert [each.parent for each in calls] == [None, 0, 1, 2]


async def test_a_memory_begins_branches_whose_tokens_are_those_that_were_served(
    cluster: Cluster,
) -> None:
    def step(text: str, command: str) -> str:
        return f"Thought: {text}\nSummary: after {text}\nAction: bash\nAction Input: {command}"

    cluster.policy.say = saying(
        step("one", "ls"),
        step("two", "cat calc.py"),
        step("three", "sed -i 's/a - b/a + b/' calc.py"),
        "Thought: done\nAction: submit",
    )
    react = ReactConfig(memory=1, summary="Summary:")
    program = {"kind": "react", "react": react}
    rollout, result = await cluster.play(program=program)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 4)
    calls, _ = await turns.history(cluster.db, rollout, 0)
    assert [each.parent for each in calls] == [None, 0, None, None]
    last = bytes(calls[3].prompt_ids).decode()
    assert "Summary of your first 2 steps:\nafter two" in last and "after one" not in last
    # Each token that was sampled is trained once, on the prompt that it was sampled after.
    samples = samples_of(rollout, calls)
    trained = [sample.token_ids[sample.action_mask].tolist() for sample in samples]
    together = [token for tokens in trained for token in tokens]
    assert together == [token for each in calls for token in each.completion_ids]
    for sample, number in zip(samples, (1, 2, 3), strict=True):
        length = len(calls[number].completion_ids)
        assert sample.token_ids[-length:].tolist() == list(calls[number].completion_ids)


async def test_one_patch_is_one_turn(cluster: Cluster) -> None:
    patch = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n"
    patch += "-    return a - b\n+    return a + b\n"
    cluster.policy.say = saying(f"```diff\n{patch}```")
    _, result = await cluster.play(agent="single", step_limit=1)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 1)


@pytest.mark.parametrize(
    ("agent_name", "stop_reason"),
    [(None, StopReason.FORMAT_ERRORS), ("caller", StopReason.STEP_LIMIT)],
)
async def test_a_task_chooses_among_the_agents_of_its_campaign(
    cluster: Cluster, agent_name: str | None, stop_reason: StopReason
) -> None:
    config = CampaignConfig(
        name=f"several-{agent_name}".lower(),
        agent=AgentConfig(max_format_errors=2),
        agents={"caller": AgentConfig(kind="tools", step_limit=2)},
        policy=PolicyConfig(model="scripted", max_context=100_000, max_new_tokens=25_000),
    )
    campaign, group, [rollout] = await cluster.store(config, _task(agent_name))
    cluster.policy.say = saying(call("bash", command="ls"), call("bash", command="ls"))
    handle = await cluster.start(rollout, campaign, group)
    result = await handle.result()
    assert (result.stop_reason, result.num_turns) == (stop_reason, 2)
    data = await collect(cluster.db, campaign)
    [of_agent] = data.agents
    assert (of_agent.agent, of_agent.num_rollouts) == (agent_name or "bash", 1)
    assert (of_agent.num_scored, of_agent.turns_mean) == (1, 2.0)
    assert summary(data)["agents"][of_agent.agent]["reward_mean"] == result.reward


def _task(agent_name: str | None) -> SweTask:
    return SweTask(
        id=TaskId(f"by-name-{agent_name}"),
        source="tests",
        split="train",
        issue="add subtracts",
        files={"calc.py": "def add(a, b):\n    return a - b\n"},
        test_command="true",
        agent_name=agent_name,
    )
