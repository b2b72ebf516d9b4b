"""Replies as models really write them, and what each is read as."""

import time

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


README = "# Use\n```bash\npip install x\n```\nand\n```\nout\n```"
DOCSTRING = 'def add(a, b):\n    """Add.\n\n```\n>>> add(1, 2)\n"""\n    return a + b'


@pytest.mark.parametrize(
    "command",
    [
        # Heredocs whose files have fences, in pairs and odd ones.
        f"cat > calc.py <<'EOF'\n{DOCSTRING}\nEOF\npython calc.py",
        f"cat > README.md <<EOF\n{README}\nEOF",
        f'cat <<"END OF" > README.md\n{README}\nEND OF\necho done',
        f"cat <<\\EOF > README.md\n{README}\nEOF",
        f"cat <<E'O'F > README.md\n{README}\nEOF",
        f"cat <<-EOF > a.md\n\tx\n{README}\n\tEOF\nls",
        f"cat << 'EOF' | tee a.md && ls\n{README}\nEOF",
        f"cat <<A > a.md; cat <<'B' > b.md\n{README}\nA\n```\nx\nB\nls",
        f"python3 - <<'EOF' && echo \"it's\"\n{DOCSTRING}\nEOF",
        f"x=$(cat <<'EOF'\n{README}\nEOF\n)\necho \"$x\"",
        f'git commit -m "$(cat <<EOF\n{README}\nEOF\n)"',
        f"(\ncat <<'EOF' > a.md\n{README}\nEOF\n)",
        "cat > a.md <<'EOF'\n~~~~\nx\n~~~~\n````\n```\nx\n```\n````\n   ```\n    ```\nEOF",
        "cat > a.md <<'EOF'\nEOF \n EOF\n```\nEOF",
        "if true; then\n  cat > a.md <<EOF\n```\nEOF\nfi",
        # What looks like a heredoc and is none.
        "cat <<< 'x' && grep -c a <<<b calc.py",
        "echo $((1 << 2)) && (( x = 1<<3 ))",
        "echo '<<EOF' \"<<EOF\" # <<EOF",
        "# it's a comment\nls",
        "grep -n \"it's\" a.py && sed 's/\"//' b.py",
        "echo \"$(sed 's/\"//' b.py)\" ${x#'} $'it\\'s'",
        'awk \'{print $1}\' a | while read -r l; do echo "${l%"x"}"; done',
        "case $x in\n  a) echo 'b';;\nesac",
        "python -c \"\nprint('''x''')\n\"",
        # Neither heredoc nor fence is closed by bash's rules, and nothing follows.
        "cat > a.py <<'EOF'\nx = 1",
        "echo it's",
    ],
)
def test_a_fence_inside_a_heredoc_is_a_line_of_its_file(command: str) -> None:
    assert parse_bash_block(reply(command)) == Command(command)
    if command.endswith(("x = 1", "it's")):
        return
    after = "\nIt prints:\n```\n3\n```\nand it's done."
    assert parse_bash_block(reply(command) + after) == Command(command)
    assert parse_bash_block(reply(command, "ls")) == FormatError(2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        # A heredoc that never ends: cut off, or closed by a line that is not its delimiter.
        ("```bash\ncat > a.py <<'EOF'\ndef f():\n```\n    return 1\n", "heredoc EOF"),
        (reply(f"cat > a.py <<'EOF'\n{DOCSTRING}\n EOF\npython a.py"), "heredoc EOF"),
        (reply("cat > a.py <<'EOF'\nx = 1") + "\nNow it works.", "heredoc EOF"),
        (reply("cat <<A > a; cat <<B > b\n```\nA\n```\nx"), "heredoc B"),
        # A quote over several lines with a fence.
        (reply("python3 -c \"\nx = '''\n```\n'''\n\""), "inside a quote"),
        (reply("git commit -m 'Say:\n```\nx\n```\ndone'"), "inside a quote"),
        (reply("echo it's") + "\nwhich prints\n```\nits", "inside a quote"),
    ],
)
def test_a_block_whose_end_is_not_clear_is_not_run(text: str, reason: str) -> None:
    found = parse_bash_block(text)
    assert isinstance(found, FormatError) and reason in found.reason, found


def test_two_blocks_of_which_the_first_forgets_its_delimiter_are_two() -> None:
    forgotten = "cat > a.py <<EOF\nx = 1"
    assert parse_bash_block(reply(forgotten, "cat > b.py <<EOF\nx\nEOF")) == FormatError(2)
    assert parse_bash_block(reply(forgotten, "ls")) == FormatError(2)


def test_long_replies_are_read_in_linear_time() -> None:
    lines = "\n".join(["x = 'it' # \"quote\" $(a) `b`"] * 20_000)
    began = time.process_time()
    assert isinstance(parse_bash_block(reply(lines)), Command)
    assert isinstance(parse_bash_block("```bash\n" * 10_000), FormatError)
    assert time.process_time() - began < 10
