"""Replies as models really write them, and what each is read as."""

import pytest

from mainspring.agents.bash_block import parse_bash_block
from mainspring.agents.protocol import Command, FormatError


def reply(*commands: str) -> str:
    return "THOUGHT: because.\n\n" + "\n\n".join(f"```bash\n{c}\n```" for c in commands)


def test_one_block_is_the_command() -> None:
    assert parse_bash_block(reply("ls -la && pwd")) == Command("ls -la && pwd")


def test_text_around_the_block_and_other_fences_do_not_matter() -> None:
    text = "I saw:\n```python\nx = 1\n```\n" + reply("cat a.py") + "\nThat is all."
    assert parse_bash_block(text) == Command("cat a.py")


def test_backquotes_and_blank_lines_inside_a_command_stay() -> None:
    command = "cat <<'EOF' > a.md\nuse ```x``` here\n\ndone\nEOF"
    assert parse_bash_block(reply(command)) == Command(command)


@pytest.mark.parametrize(
    ("text", "num_blocks"),
    [
        ("", 0),
        ("THOUGHT: I am done.", 0),
        ("```sh\nls\n```", 0),
        ("```bash\nls", 0),
        ("```bash\n```", 0),
        ("```bash\n  \n```", 0),
        (reply("ls", "pwd"), 2),
        (reply("ls", "pwd", "id"), 3),
    ],
)
def test_anything_but_one_block_is_a_format_error(text: str, num_blocks: int) -> None:
    assert parse_bash_block(text) == FormatError(num_blocks)


def test_a_nul_never_reaches_the_shell() -> None:
    assert parse_bash_block(reply("echo a\0b")) == Command("echo ab")


def test_lines_may_end_as_on_windows() -> None:
    text = reply("cd src &&\nls").replace("\n", "\r\n")
    assert parse_bash_block(text) == Command("cd src &&\nls")


@pytest.mark.parametrize(
    "thought",
    [
        f"<think>\nPerhaps:\n{reply('rm -rf .')}\nNo.\n</think>\n",
        # The chat template of reasoning models opens the thought in the prompt.
        f"Perhaps:\n{reply('rm -rf .')}\n{reply('ls')}\nNo.\n</think>\n",
        f"I think:\n  <think>{reply('id')}</think> and <think>\n{reply('pwd')}</think>\n",
    ],
)
def test_what_a_model_thinks_is_not_run(thought: str) -> None:
    assert parse_bash_block(thought + reply("cat a.py")) == Command("cat a.py")
    assert parse_bash_block(thought) == FormatError(0)


def test_a_thought_that_never_ends_has_no_command() -> None:
    assert parse_bash_block(f"<think>\nI would run\n{reply('rm -rf .')}\nbut") == FormatError(0)


@pytest.mark.parametrize(
    "command",
    [
        "grep -n '<think>' a.py",
        "cat <<'EOF' > a.md\n<think>\nx\n</think>\nEOF",
        "sed 's/<\\/think>//'",
    ],
)
def test_tags_inside_a_command_are_text(command: str) -> None:
    assert parse_bash_block(reply(command)) == Command(command)


def test_prose_may_name_the_tag() -> None:
    text = "THOUGHT: the parser misses <think> here.\n\n" + reply("cat a.py")
    assert parse_bash_block(text) == Command("cat a.py")
