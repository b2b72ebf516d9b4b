"""Replies as programs take them: each format's calls, what stays text, and that no text raises."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import ConfigError
from mainspring.programs.parsing.choice import DEFAULT, PARSERS, parser_of
from mainspring.programs.reply import Finish, Reply
from mainspring.programs.request import ToolCall, ToolSpec

BASH = ToolSpec(
    name="bash",
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "timeout": {"type": "integer"},
            "share": {"type": "number"},
            "quiet": {"type": "boolean"},
            "lines": {"type": "array", "items": {"type": "integer"}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "limit": {"type": ["integer", "null"]},
        },
    },
)
TOOLS = (BASH,)
DEEP = "[" * 100_000


def parse(name: str, text: str, *, tools: tuple[ToolSpec, ...] = TOOLS, cut: bool = False) -> Reply:
    return parser_of(name)(text, tools, cut)


def hermes(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_hermes_reads_calls_and_leaves_the_text_around_them() -> None:
    text = f"Look first.\n\n{hermes('bash', command='ls')}\n{hermes('other', n=1)}"
    reply = parse("hermes", text)
    assert reply.text == "Look first." and reply.finish is Finish.TOOL_CALLS
    assert reply.tool_calls == (
        ToolCall(name="bash", arguments='{"command": "ls"}'),
        ToolCall(name="other", arguments='{"n": 1}'),
    )
    tag = parse("hermes", hermes("bash", command="echo '</tool_call><think></think>'"))
    assert json.loads(tag.tool_calls[0].arguments)["command"].startswith("echo '</tool_call>")
    assert not tag.reasoning and not tag.text


@pytest.mark.parametrize(
    "body",
    [
        "{'name': 'bash'}",
        '{"name": "bash", "arguments": {"command": NaN}}',
        '{"name": "bash", "arguments": {"n": 1e999}}',
        '{"name": "bash", "arguments": [1]}',
        '{"name": "", "arguments": {}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"arguments": {}}',
        '{"name": "bash", "arguments": {"command": "l',
        "[1, 2]",
        '{"name": "bash", "arguments": ' + DEEP,
        '{"name": "bash", "arguments": {"n": ' + "1" * 5000 + "}}",
        "",
    ],
    ids=lambda body: body[:40],
)
def test_a_call_that_cannot_be_read_stays_text(body: str) -> None:
    text = f"I call <tool_call>{body}</tool_call> now"
    assert parse("hermes", text) == Reply(text=text)
    both = parse("hermes", text + hermes("bash", command="ls"))
    assert both.text == text and len(both.tool_calls) == 1


def test_a_closing_tag_may_be_missing_where_nothing_else_follows() -> None:
    opened = hermes("bash", command="ls").removesuffix("</tool_call>")
    assert parse("hermes", opened).tool_calls[0].name == "bash"
    assert len(parse("hermes", opened + hermes("bash", command="ls")).tool_calls) == 2
    assert not parse("hermes", opened + " and then").tool_calls
    cut = parse("hermes", opened, cut=True)
    assert cut.tool_calls and cut.finish is Finish.LENGTH


def test_arguments_may_be_a_string_and_may_hold_halves_of_characters() -> None:
    twice = '<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>'
    assert parse("hermes", twice).tool_calls[0].arguments == '{"command": "ls"}'
    half = '<tool_call>{"name": "bash", "arguments": {"command": "\\ud83d caf\\u00e9"}}</tool_call>'
    [call] = parse("hermes", half).tool_calls
    assert call.arguments.encode() and json.loads(call.arguments)["command"] == "\ud83d caf\u00e9"


@pytest.mark.parametrize(
    ("text", "reasoning", "told"),
    [
        ("<think>\nhm\n</think>\n\nDone.", "hm", "Done."),
        ("hm\n</think>\n\nDone.", "hm", "Done."),
        ("\n<think>cut in the mid", "cut in the mid", ""),
        ("<think></think>Done.", "", "Done."),
        ("Use <think> tags </think>.", "", "Use <think> tags </think>."),
        ("Done.\n", "", "Done.\n"),
    ],
)
@pytest.mark.parametrize("name", PARSERS)
def test_thinking_is_taken_out(name: str, text: str, reasoning: str, told: str) -> None:
    assert parse(name, text) == Reply(text=told, reasoning=reasoning)


def test_thinking_that_drafts_a_call_makes_none() -> None:
    thinking = f"<think>maybe {hermes('bash', command='rm')}</think>{hermes('bash', command='ls')}"
    reply = parse("hermes", thinking)
    assert [json.loads(call.arguments)["command"] for call in reply.tool_calls] == ["ls"]
    assert "rm" in reply.reasoning


def xml(name: str, **values: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def test_qwen_xml_types_values_by_the_schema() -> None:
    values = {
        "command": "cat <<E\n  two lines\nE\n",
        "timeout": "30",
        "share": "0.5",
        "quiet": "True",
        "lines": "[1, 2]",
        "note": "null",
        "limit": "None",
        "unknown": "7",
    }
    reply = parse("qwen_xml", f"So:\n{xml('bash', **values)}")
    assert reply.text == "So:"
    assert json.loads(reply.tool_calls[0].arguments) == {
        "command": "cat <<E\n  two lines\nE\n",
        "timeout": 30,
        "share": 0.5,
        "quiet": True,
        "lines": [1, 2],
        "note": None,
        "limit": None,
        "unknown": "7",
    }
    wrong = {"timeout": "soon", "quiet": "1", "share": "true", "limit": DEEP}
    [call] = parse("qwen_xml", xml("bash", **wrong)).tool_calls
    assert json.loads(call.arguments) == wrong
    [other] = parse("qwen_xml", xml("not offered", timeout="30")).tool_calls
    assert other == ToolCall(name="not offered", arguments='{"timeout": "30"}')


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=bash>\n<parameter=command>\nls",
        "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n",
        "<function=>\n</function>",
        "<function=bash><parameter=command>a</parameter>b</parameter></function>",
        "<function=" + "x" * 1000 + "></function>",
    ],
    ids=lambda text: text[-40:],
)
def test_qwen_xml_that_is_not_whole_stays_text(text: str) -> None:
    assert parse("qwen_xml", text, cut=True) == Reply(text=text, is_cut=True)


def test_qwen_xml_needs_no_wrapper_and_forgives_broken_schemas() -> None:
    bare = "<function=bash>\n<parameter=timeout>\n3\n</parameter>\n</function>"
    for parameters in ({}, {"properties": []}, {"properties": {"timeout": 3}}):
        tools = (ToolSpec(name="bash", parameters=parameters),)
        [call] = parse("qwen_xml", bare, tools=tools).tool_calls
        assert json.loads(call.arguments) == {"timeout": "3"}
    assert json.loads(parse("qwen_xml", bare).tool_calls[0].arguments) == {"timeout": 3}


def test_llama_json_stands_alone() -> None:
    one = '{"name": "bash", "parameters": {"command": "echo </think>"}}'
    two = f"<|python_tag|>{one}; {one}\n"
    assert len(parse("llama_json", one).tool_calls) == 1
    assert len(parse("llama_json", two).tool_calls) == 2 and not parse("llama_json", two).text
    for text in (f"I call {one}", f"{one} now", '{"parameters": {}}', "{}", DEEP, "", " ; "):
        assert parse("llama_json", text) == Reply(text=text)


@pytest.mark.parametrize("name", PARSERS)
def test_a_program_without_tools_gets_text(name: str) -> None:
    for text in (hermes("bash", command="ls"), xml("bash", command="ls"), '{"name": "bash"}'):
        assert parse(name, text, tools=()) == Reply(text=text)


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "<function=bash>", "</function>"),
        *("<parameter=timeout>", "<parameter=lines>", "</parameter>", "3", "null", "\n", " ", ";"),
        *('{"name": "bash", "arguments": ', '{"command": "ls"}', "}", "{", "[", '"', "\\ud800"),
        *('{"name": "bash", "parameters": {}}', "\ud800", "\x00", "NaN", "caf\u00e9"),
    ]
)
SCHEMAS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "anyOf", "properties", "timeout"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(PIECES | st.text(max_size=8), max_size=25).map("".join),
    schema=st.dictionaries(st.sampled_from(["type", "properties"]), SCHEMAS),
    cut=st.booleans(),
)
def test_no_text_and_no_schema_raises(text: str, schema: dict[str, Any], cut: bool) -> None:
    tools = (ToolSpec(name="bash", parameters=schema),)
    for name in PARSERS:
        reply = parse(name, text, tools=tools, cut=cut)
        assert reply == parse(name, text, tools=tools, cut=cut) and reply.is_cut is cut
        assert reply.text.encode() is not None and reply.reasoning.encode() is not None
        for call in reply.tool_calls:
            assert call.name and isinstance(json.loads(call.arguments), dict)


def shout(text: str, tools: tuple[ToolSpec, ...], is_cut: bool) -> Reply:
    """A parser of our own."""
    return Reply(text=text.upper() if text else 1 / 0)  # type: ignore[arg-type]


def none_at_all(text: str, tools: tuple[ToolSpec, ...], is_cut: bool) -> None:
    """Is no parser."""


def test_a_parser_is_chosen_by_name_or_path() -> None:
    assert DEFAULT in PARSERS and parser_of(DEFAULT) is PARSERS[DEFAULT]
    assert parse(f"{__name__}:shout", "hey").text == "HEY"
    with pytest.raises(ConfigError, match="no reply parser is called 'xml'"):
        parser_of("xml")
    with pytest.raises(ConfigError, match="is a dict, expected a plain function"):
        PARSERS.check(f"{__name__}:__dict__")
    with pytest.raises(ConfigError, match="failed: ZeroDivisionError"):
        parse(f"{__name__}:shout", "")
    with pytest.raises(ConfigError, match="returned a NoneType"):
        parse(f"{__name__}:none_at_all", "hey")
