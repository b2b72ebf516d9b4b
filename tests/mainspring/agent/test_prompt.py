"""The prompts say what the parser and the sandbox really do."""

from mainspring.agent.action import SUBMIT_SENTINEL, Command, parse_action
from mainspring.agent.prompt import system_prompt, task_prompt


def test_the_example_in_the_system_prompt_is_a_valid_reply() -> None:
    assert isinstance(parse_action(system_prompt(short=False)), Command)


def test_the_task_prompt_shows_a_submission_the_parser_accepts() -> None:
    text = task_prompt("It is broken.", "/testbed", short=False)
    assert parse_action(text) == Command(f"echo {SUBMIT_SENTINEL}", is_submit=True)


def test_the_task_prompt_states_issue_place_and_rules() -> None:
    text = task_prompt("Totals are {{ off }} by 1.", "/srv/repo", short=False)
    assert "<issue>\nTotals are {{ off }} by 1.\n</issue>" in text
    for rule in ("/srv/repo", "tests", "fresh subshell", "waits for input"):
        assert rule in text


def test_the_short_form_is_two_messages_of_one_line() -> None:
    assert "\n" not in system_prompt(short=True)
    assert task_prompt("Fix `f`.", "/testbed", short=True) == "Fix `f`."
