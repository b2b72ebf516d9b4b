"""Tools: what a call becomes, what it does where it runs, and what is told where it cannot run."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.agents.protocol import Command, FormatError
from mainspring.agents.tool_calls import ToolsAgent
from mainspring.agents.tools.choice import python_tools, tools_of
from mainspring.agents.tools.protocol import arguments_of, command_of
from mainspring.agents.tools.python import PythonCall, called_in
from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolCall, ToolSpec
from mainspring.trajectories.turns import Call, Execution

HERE = __name__
AGENT = ToolsAgent(AgentConfig(kind="tools"))
OBJECT = {"type": "object", "properties": {}}


def calls(*given: tuple[str, Any]) -> Reply:
    """`given`: names and arguments, as text or as what JSON is made of."""
    return Reply(
        text="",
        tool_calls=tuple(
            ToolCall(name=name, arguments=args if isinstance(args, str) else json.dumps(args))
            for name, args in given
        ),
    )


def run(folder: Path, name: str, **arguments: Any) -> tuple[int, str]:
    parsed = AGENT.parse(calls((name, arguments)))
    assert not isinstance(parsed, FormatError), parsed
    ran = subprocess.run(
        ["bash", "-c", parsed[0].command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return ran.returncode, ran.stdout.decode(errors="replace")


def test_a_file_and_a_folder_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a b.py").write_text("one\n\nthree\n")
    assert run(tmp_path, "view", path="a b.py") == (0, "     1\tone\n     2\t\n     3\tthree\n")
    assert run(tmp_path, "view", path="a b.py", first=3)[1] == "     3\tthree\n"
    assert run(tmp_path, "view", path="a b.py", first=1, last=1)[1] == "     1\tone\n"
    assert "a b.py" in run(tmp_path, "view", path=".")[1]
    status, output = run(tmp_path, "view", path="-none")
    assert status == 1 and "No such file" in output


@pytest.mark.parametrize(
    ("text", "old", "new", "changed"),
    [
        ("a = 1\nb = 2\n", "b = 2", "b = 3", "a = 1\nb = 3\n"),
        ("a\n", "a\n", "", ""),
        ("x", "x", "y\n\n", "y\n\n"),
        ("p('*[a]?{b,c}\\n')\n", "*[a]?{b,c}\\n", "$(touch gone) `x` \"'\\", None),
        ("\u00e9 \u00fc\n", "\u00fc", "\u65e5", "\u00e9 \u65e5\n"),
        ("\tif a:\r\n\t\tb\r\n", "a:\r\n", "b:\r\n", "\tif b:\r\n\t\tb\r\n"),
    ],
)
def test_a_text_is_replaced_byte_for_byte(
    tmp_path: Path, text: str, old: str, new: str, changed: str | None
) -> None:
    (tmp_path / "f").write_bytes(text.encode())
    status, output = run(tmp_path, "edit", path="f", old=old, new=new)
    expected = text.replace(old, new) if changed is None else changed
    assert (status, (tmp_path / "f").read_bytes()) == (0, expected.encode()), output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


@pytest.mark.parametrize(
    ("path", "old", "told"),
    [
        ("f", "c", "The old text is not in f."),
        ("f", "a", "The old text is more than once in f."),
        ("none", "a", "There is no file none."),
        ("nul", "a", "nul is no text: it holds NUL."),
        ("f", "", "f exists."),
    ],
)
def test_a_change_that_is_not_clear_changes_nothing(
    tmp_path: Path, path: str, old: str, told: str
) -> None:
    (tmp_path / "f").write_text("a\nb\na\n")
    (tmp_path / "nul").write_bytes(b"a\0a")
    assert run(tmp_path, "edit", path=path, old=old, new="z") == (1, f"{told}\n")
    assert (tmp_path / "f").read_text() == "a\nb\na\n"


def test_a_new_file_is_made_with_its_folders(tmp_path: Path) -> None:
    assert run(tmp_path, "edit", path="in/new.py", old="", new="x = 1\n")[0] == 0
    assert (tmp_path / "in" / "new.py").read_text() == "x = 1\n"


def test_a_large_file_is_changed_soon(tmp_path: Path) -> None:
    text = "def f(x):\n    return x + 1\n" * 40_000
    (tmp_path / "f").write_text(f"{text}the one\n{text}")
    began = time.monotonic()
    assert run(tmp_path, "edit", path="f", old="the one", new="another")[0] == 0
    assert time.monotonic() - began < 20
    assert (tmp_path / "f").read_text() == f"{text}another\n{text}"


def test_lines_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "a").write_text("x = 1\n")
    assert run(tmp_path, "search", pattern="^x|nothing") == (0, "./a.py:1:x = 1\n")
    assert run(tmp_path, "search", pattern="-e none", path="a.py") == (1, "")


def test_submission_is_the_bash_agents(tmp_path: Path) -> None:
    status, output = run(tmp_path, "submit")
    done = Execution(0, 0, "", status, output.encode(), False, False, 0.1)
    assert AGENT.is_done(done)


def test_several_calls_are_several_commands() -> None:
    parsed = AGENT.parse(calls(("bash", {"command": " ls "}), ("submit", "")))
    assert parsed == (Command("ls"), Command("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"))


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("bash", {}, "bash: 'command' is a required property"),
        ("bash", {"command": 3}, "bash: command: 3 is not of type 'string'"),
        ("bash", {"command": " \0"}, "bash: the command is empty"),
        ("bash", {"command": "ls", "more": 1}, "bash: Additional properties are not allowed"),
        ("bash", "no json", "the arguments of bash are no JSON object"),
        ("bash", "[1]", "the arguments of bash are no JSON object"),
        ("bash", "[" * 100_000, "the arguments of bash are no JSON object"),
        ("view", {"path": ""}, "view: path: '' "),
        ("view", {"path": "a\0"}, "a path holds no NUL"),
        ("view", {"path": "a", "first": 0}, "view: first: 0 is less than the minimum of 1"),
        ("view", {"path": "a", "first": 3, "last": 2}, "view: the last line (2) is before the"),
        ("edit", {"path": "a", "old": "\0", "new": ""}, "edit: a text with NUL"),
        ("search", {"pattern": "\0"}, "search: a pattern with NUL"),
        ("nothing", {}, "there is no tool 'nothing': the tools are bash, view"),
    ],
)
def test_a_call_that_cannot_run_is_told(name: str, arguments: Any, told: str) -> None:
    reply = calls(("bash", {"command": "ls"}), (name, arguments))
    parsed = AGENT.parse(reply)
    assert isinstance(parsed, FormatError) and parsed.num_commands == 2
    assert parsed.reason.startswith(told)
    assert len(parsed.reason) < 400


@pytest.mark.parametrize(
    ("text", "finish_reason", "told"),
    [
        ("I think.", "stop", "Your reply called no tool"),
        ('<tool_call>{"name": bash}</tool_call>', "stop", "its tool call cannot be read"),
        ("<function=bash", "stop", "its tool call cannot be read"),
        ('<tool_call>{"name": "ba', "length", "reached the longest length"),
    ],
)
def test_a_reply_without_a_call_is_told(text: str, finish_reason: str, told: str) -> None:
    reply = Reply(text=text)
    call = Call(0, None, 0, (), (), (), (), text, finish_reason, parts=reply)
    assert told in AGENT.after(call, [])


class Count:
    spec = ToolSpec(name="count", description="Count lines.", parameters=OBJECT)

    def command(self, arguments: dict[str, Any]) -> str:
        return "wc -l *"


class NamedBash(Count):
    spec = ToolSpec(name="bash", parameters=OBJECT)


class NoSchema(Count):
    spec = ToolSpec(name="none")


class BrokenSchema(Count):
    spec = ToolSpec(name="none", parameters={"type": "object", "properties": 3})


class NoSpec:
    def command(self, arguments: dict[str, Any]) -> str:
        return ""


class NeedsMore(Count):
    def __init__(self, more: int) -> None: ...


class InPython:
    spec = ToolSpec(name="in_python", parameters=OBJECT)

    async def create(self, task: object, rollout: object) -> None: ...

    async def execute(self, arguments: dict[str, Any]) -> str:
        return ""

    async def release(self) -> None: ...


class Both(InPython):
    def command(self, arguments: dict[str, Any]) -> str:
        return ""


class NotAsync(InPython):
    def execute(self, arguments: dict[str, Any]) -> str:  # type: ignore[override]
        return ""


class Unreleased:
    spec = InPython.spec
    create, execute = InPython.create, InPython.execute


class OddName(InPython):
    spec = ToolSpec(name="in python", parameters=OBJECT)


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans(), max_size=3))
def test_a_call_in_python_is_one_line_that_is_read_back(arguments: dict[str, Any]) -> None:
    spec = ToolSpec(name="in_python", parameters=OBJECT)
    line = command_of(PythonCall(spec), ToolCall(name="in_python", arguments=json.dumps(arguments)))
    assert len(line.splitlines()) == 1 and line.isascii() and line.isprintable()
    back = called_in(line)
    assert back is not None and back.name == "in_python"
    assert arguments_of(spec, back) == arguments
    # A shell takes it for a comment.
    assert line.startswith("#")


@pytest.mark.parametrize("command", ["ls", "", " #tool x {}", "#toolbox x", "echo #tool x {}"])
def test_a_command_is_no_call(command: str) -> None:
    assert called_in(command) is None


def test_tools_in_python_are_told_from_others() -> None:
    names = ("bash", f"{HERE}:Count", f"{HERE}:InPython")
    assert list(tools_of(names)) == ["bash", "count", "in_python"]
    assert python_tools(names) == {"in_python": f"{HERE}:InPython"}


def test_a_tool_of_ones_own_is_named_by_its_path() -> None:
    agent = ToolsAgent(AgentConfig(kind="tools", tools=("bash", f"{HERE}:Count")))
    assert [tool.name for tool in agent.tools] == ["bash", "count"]
    assert agent.parse(calls(("count", {}))) == (Command("wc -l *"),)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "no tool is called 'none'"),
        (f"{HERE}:NamedBash", "two tools are called 'bash'"),
        ("bash", "two tools are called 'bash'"),
        (f"{HERE}:NoSchema", 'its schema must have "type": "object"'),
        (f"{HERE}:BrokenSchema", "its schema is none: properties: 3 is not of type 'object'"),
        (f"{HERE}:NoSpec", "it cannot be made: AttributeError"),
        (f"{HERE}:NeedsMore", "it cannot be made: TypeError"),
        (f"{HERE}:HERE", "is a str, expected a class"),
        (f"{HERE}:Both", "has both command and execute"),
        (f"{HERE}:test_what_is_no_tool_is_refused", "is a function, expected a class"),
        (f"{HERE}:Path", "lacks command or execute"),
        (f"{HERE}:NotAsync", "runs in Python, and its execute is not async"),
        (f"{HERE}:Unreleased", "runs in Python, and its release is not async"),
        (f"{HERE}:OddName", "its name 'in python' is not 1 to 64 of"),
    ],
)
def test_what_is_no_tool_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        tools_of(("bash", name))
    assert refused.value.remedy
