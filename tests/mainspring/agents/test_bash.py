"""The agents' prompts tell what their parser and the sandbox really do."""

import pytest

from mainspring.agents.bash import BashAgent
from mainspring.agents.bash_block import SUBMIT_SENTINEL
from mainspring.agents.bundled import BundledAgent
from mainspring.agents.protocol import Command, commands_in
from mainspring.config.agents.agent import AgentConfig
from mainspring.ids import TaskId
from mainspring.programs.reply import Reply
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import Call, Execution

AGENT = BashAgent(AgentConfig(step_limit=3))
SHORT = BundledAgent(AgentConfig(step_limit=3))


def task(issue: str, workdir: str = "/testbed") -> SweTask:
    return SweTask(
        id=TaskId("t"),
        source="s",
        split="train",
        issue=issue,
        workdir=workdir,
        files={"a.py": ""},
        test_command="true",
    )


def reply(text: str, turn: int = 0, finish_reason: str = "stop") -> Call:
    return Call(turn, turn - 1 if turn else None, 0, (), (), (), (), text, finish_reason)


def ran(output: bytes, returncode: int = 0, turn: int = 0) -> Execution:
    return Execution(turn, 0, "command", returncode, output, False, False, 0.1)


def block(command: str) -> str:
    return f"THOUGHT: because.\n\n```bash\n{command}\n```"


def test_the_example_in_the_system_prompt_is_a_valid_reply() -> None:
    system, _ = AGENT.opening(task("It is broken."))
    [command] = commands_in(AGENT, Reply(text=system["content"]))
    assert isinstance(command, Command)


def test_the_task_prompt_shows_a_submission_the_parser_accepts() -> None:
    _, user = AGENT.opening(task("It is broken."))
    assert commands_in(AGENT, Reply(text=user["content"])) == (Command(f"echo {SUBMIT_SENTINEL}"),)


def test_the_task_prompt_states_issue_place_and_rules() -> None:
    _, user = AGENT.opening(task("Totals are {{ off }} by 1.", "/srv/repo"))
    assert "<issue>\nTotals are {{ off }} by 1.\n</issue>" in user["content"]
    for rule in ("/srv/repo", "tests", "fresh subshell", "waits for input"):
        assert rule in user["content"]


def test_the_bundled_agents_prompts_are_two_messages_of_one_line() -> None:
    system, user = SHORT.opening(task("Fix `f`."))
    assert "\n" not in system["content"]
    assert user["content"] == "Fix `f`."


@pytest.mark.parametrize(
    ("output", "returncode", "is_done"),
    [
        (f"{SUBMIT_SENTINEL}\n".encode(), 0, True),
        (f"\n  {SUBMIT_SENTINEL}\nand more\n".encode(), 0, True),
        (f"{SUBMIT_SENTINEL}\n".encode(), 1, False),
        (f"first\n{SUBMIT_SENTINEL}\n".encode(), 0, False),
        (f"{SUBMIT_SENTINEL}!".encode(), 0, False),
        (b"", 0, False),
    ],
)
def test_a_submission_prints_the_sentinel_first_and_succeeds(
    output: bytes, returncode: int, is_done: bool
) -> None:
    assert AGENT.is_done(ran(output, returncode)) is is_done


def test_an_observation_reminds_of_turns_that_are_left() -> None:
    assert "2 turns are left" in AGENT.after(reply(block("ls")), [ran(b"a.py\n")])
    assert "This is your last turn" in AGENT.after(reply(block("ls"), 1), [ran(b"a.py\n", turn=1)])
    assert "left" not in SHORT.after(reply(block("ls")), [ran(b"a.py\n")])


def test_a_reply_without_a_command_is_told_what_was_wrong() -> None:
    assert "had 0 bash blocks" in AGENT.after(reply("I am done."), ())
    assert "had 2 bash blocks" in AGENT.after(reply(block("ls") + "\n" + block("id")), ())
    for cut in ("length", "max_tokens"):
        assert "was cut off" in AGENT.after(reply("THOUGHT: I", finish_reason=cut), ())
