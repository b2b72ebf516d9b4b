"""The single agent takes one patch from one reply, or the reply as an answer."""

import subprocess
from pathlib import Path

import pytest

from mainspring.agents.protocol import Command, FormatError
from mainspring.agents.single import SingleAgent
from mainspring.config.agents.agent import AgentConfig, SingleAnswer
from mainspring.errors import ConfigError
from mainspring.ids import TaskId
from mainspring.programs.reply import Reply
from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import Call

TASK = SweTask(
    id=TaskId("t"), source="s", split="train", issue="i", files={"a": ""}, test_command="true"
)
QUESTION = OwnTask(id=TaskId("q"), source="s", split="train", issue="1 + 1?", kind="sum", data={})
PATCH = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+two\n"
AGENT = SingleAgent(AgentConfig(kind="single"))
ANSWERS = SingleAgent(AgentConfig(kind="single", single=SingleAnswer.TEXT))


def test_one_reply_is_one_turn_unless_it_is_set() -> None:
    assert AgentConfig.model_validate({"kind": "single"}).step_limit == 1
    assert AgentConfig.model_validate({"kind": "single", "step_limit": 3}).step_limit == 3


@pytest.mark.parametrize("patch", [PATCH, PATCH + "+END_OF_THE_PATCH\n", PATCH.replace("+1", "+9")])
def test_the_patch_is_applied(tmp_path: Path, patch: str) -> None:
    (tmp_path / "f").write_text("one\n")
    parsed = AGENT.parse(Reply(text=f"I think.\n\n```diff\n{patch}```\nDone."))
    assert not isinstance(parsed, FormatError)
    subprocess.run(["bash", "-c", parsed[0].command], cwd=tmp_path, check=True)
    assert (tmp_path / "f").read_text().startswith("two\n")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("no patch", 0),
        (f"```diff\n{PATCH}```\n```diff\n{PATCH}```", 2),
        ("```diff\n\n```", 1),
        (f"<think>```diff\n{PATCH}```</think>", 0),
        (f"```diff\n{PATCH}", 0),
    ],
)
def test_a_reply_without_one_patch_is_told(text: str, number: int) -> None:
    assert AGENT.parse(Reply(text=text)) == FormatError(number)
    call = Call(0, None, 0, (), (), (), (), text, "stop")
    assert f"{number} blocks marked diff" in AGENT.after(call, [])


def test_an_answer_is_the_whole_reply() -> None:
    assert ANSWERS.parse(Reply(text="<think>hm</think> 2\n")) == (Command("2"),)
    assert ANSWERS.parse(Reply(text=" ")) == FormatError(0)
    assert ANSWERS.opening(QUESTION)[1]["content"] == "1 + 1?"


def test_tasks_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'cannot play task q with agent\.single = "patch"'):
        AGENT.opening(QUESTION)
    with pytest.raises(ConfigError, match=r'cannot play task t with agent\.single = "text"'):
        ANSWERS.opening(TASK)
