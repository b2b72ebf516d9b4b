"""A judge is asked about what a program did; only the replies of both are scripted."""

from collections.abc import Iterator

import pytest
from judged_rollouts import BOTH, begin, config_of, judge_endpoint, prompt
from program_cluster import ProgramCluster, calling, own_program

from cli.operations.checks.named_parts import check_named
from cli.rollout.rollout_screen import print_one
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.reward import RewardConfig
from mainspring.errors import UsageError
from mainspring.status import StopReason
from reports import one_rollout
from tests.chat_endpoint import Endpoint


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with judge_endpoint() as endpoint:
        yield endpoint


async def test_a_program_is_judged_as_a_whole(
    programs: ProgramCluster, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.engine.say = lambda prompt, turn: [
        calling("cat calc.py"),
        calling("sed -i 's/a - b/a + b/' calc.py"),
        "It is fixed.",
    ][turn]
    parts = ({"name": "outcome"}, {"name": "judge", "judge": "quality", "of": "rollout"})
    config = config_of(endpoint, parts, votes=1)
    agent = AgentConfig.model_validate({"step_limit": 8, **own_program()})
    config = config.model_copy(update={"agent": agent})
    rollout, handle = await begin(programs.workers, config)
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 2.0)
    shown = prompt(endpoint.asked[0]["messages"])
    for part in ("cat calc.py", "return a - b", "It is fixed.", "+    return a + b"):
        assert part in shown
    print_one(await one_rollout.read(programs.workers.db, rollout), only_turn=None)
    assert "judge quality: 1" in capsys.readouterr().out

    turns = config.model_copy(update={"reward": RewardConfig.model_validate({"parts": list(BOTH)})})
    with pytest.raises(UsageError, match=r"and agent\.kind = 'command' is a program"):
        check_named(turns)
    agents = {"coder": turns.agent}
    beside = turns.model_copy(update={"agent": AgentConfig(), "agents": agents})
    with pytest.raises(UsageError, match=r"agents\.coder\.kind = 'command' is a program"):
        check_named(beside)
