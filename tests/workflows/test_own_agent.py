"""The example agent plays a rollout: named by its path, with replies of its own form."""

import json
import sys
from pathlib import Path

import pytest
from cluster import Cluster

from infra.db.rollouts import turns
from mainspring.agents.choice import check_agent
from mainspring.config.agents.agent import AgentConfig
from mainspring.status import StopReason

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-agent"
KIND = "json_agent:JsonAgent"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    sys.modules.pop("json_agent", None)


def reply(command: str) -> str:
    return json.dumps({"thought": "because", "command": command})


@pytest.mark.usefixtures("importable")
async def test_the_example_agent_plays_a_rollout(cluster: Cluster) -> None:
    check_agent(AgentConfig(kind=KIND))
    says = ["```bash\nls\n```", reply("sed -i 's/a - b/a + b/' calc.py; ls"), reply(SUBMIT)]
    cluster.policy.say = lambda rollout, turn: says[turn]
    rollout, result = await cluster.play(agent=KIND)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 3)
    replies, executions = await turns.history(cluster.db, rollout, 0)
    assert [each.call for each in executions] == [1, 2]
    assert executions[0].output == b"calc.py\n"
    opening, wrong_form = (bytes(each.prompt_ids).decode() for each in replies[:2])
    assert "one JSON object" in opening and "add subtracts" in opening
    assert wrong_form.startswith("Your reply was not")
