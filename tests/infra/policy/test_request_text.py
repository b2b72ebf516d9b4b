"""Requests as tokens: what a template is given, what is appended, and that text stays text."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.policy.model.request_text import RequestText
from infra.policy.model.template_facts import MANY_CALLS
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import RequestRefused
from mainspring.errors import ModelError
from mainspring.programs.request import ChatMessage, Role, ToolCall, ToolSpec
from tests.infra.policy.chat_templates import NAMES, TAGS, request_text, tokenizer_of

TOKENIZERS = {name: tokenizer_of(name) for name in (*NAMES, "angle_like")}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|sep|>")
BASH = ToolSpec(
    name="bash",
    description="Runs a command.",
    parameters={
        "type": "object",
        "properties": {"command": {"type": "string", "description": "what to run"}},
        "required": ["command"],
    },
)


def say(role: Role, text: str, *calls: ToolCall, answers: str = "") -> ChatMessage:
    return ChatMessage(role=role, text=text, tool_calls=calls, call_id=answers)


def call(name: str, id: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=json.dumps(arguments), id=id)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RequestText]:
    return {name: request_text(name, tmp_path_factory.mktemp(name)) for name in NAMES}


@pytest.fixture(scope="module")
def all_texts(
    texts: dict[str, RequestText], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, RequestText]:
    angle = request_text("angle_like", tmp_path_factory.mktemp("angle"))
    return {**texts, "angle_like": angle}


@pytest.fixture(scope="module")
def plain_texts(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[RequestText, ChatTokenizer]]:
    """Of agents: the templates that take a system's message."""
    made: dict[str, tuple[RequestText, ChatTokenizer]] = {}
    for name in ("qwen_like", "llama_like", "chatml"):
        folder = tmp_path_factory.mktemp(name)
        TOKENIZERS[name].save_pretrained(folder)
        chat = ChatTokenizer(folder)
        made[name] = RequestText(chat, plain=True), chat
    return made


def shown(name: str, ids: tuple[int, ...]) -> str:
    return TOKENIZERS[name].decode(list(ids))


def test_templates_are_known_by_what_they_write(texts: dict[str, RequestText]) -> None:
    qwen, coder = texts["qwen_like"].facts, texts["coder_like"].facts
    llama, plain = texts["llama_like"].facts, texts["plain_like"].facts
    for facts in (qwen, coder):
        assert facts.tools and facts.tool_role and facts.num_calls == MANY_CALLS
        assert facts.calls_with_text and facts.later_system and facts.repeated_user
    assert (qwen.opening, coder.opening) == ("", "<think>\n")
    assert texts["coder_like"].decode([]) == "<think>\n"
    assert llama.tools and llama.num_calls == 1 and not llama.calls_with_text
    assert not (plain.system or plain.tools or plain.tool_role or plain.later_system)
    assert not plain.repeated_user and plain.num_calls == 0


HISTORY = (
    say(Role.SYSTEM, "Be brief."),
    say(Role.SYSTEM, "Be kind."),
    say(Role.USER, "Fix it."),
    say(Role.ASSISTANT, "I look.", call("bash", "a", command="ls")),
    say(Role.TOOL, "calc.py", answers="a"),
    say(Role.TOOL, "test.py", answers="b"),
    say(Role.SYSTEM, "Files changed."),
    say(Role.USER, "Well?"),
)


def test_nothing_that_a_program_said_is_left_out(texts: dict[str, RequestText]) -> None:
    for name, text in texts.items():
        whole = shown(name, text.first_ids(HISTORY, (BASH,)))
        position = 0
        for part in (*("Be brief.", "Be kind.", "Fix it.", "I look.", "ls"), "calc.py", "test.py"):
            position = whole.index(part, position)
        assert whole.index("Files changed.", position) < whole.index("Well?", position)
        assert whole.count("Runs a command.") == 1
        later = shown(name, text.next_ids(HISTORY[4:], closed=True))
        assert "calc.py" in later and "I look." not in later and "Runs" not in later


def test_a_template_without_roles_gets_them_as_text(texts: dict[str, RequestText]) -> None:
    whole = shown("plain_like", texts["plain_like"].first_ids(HISTORY, (BASH,)))
    described = json.dumps({"type": "function", "function": BASH.model_dump()})
    assert whole.startswith("<|endoftext|><|im_start|>user\nBe brief.\n\nBe kind.\n\n# Tools\n")
    assert f"<tools>\n{described}\n</tools>" in whole
    assert whole.endswith(
        "</tool_call>\n\nFix it.<|im_end|>\n<|im_start|>model\nI look.\n"
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\ncalc.py\n</tool_response>\n"
        "<tool_response>\ntest.py\n</tool_response>\n\nFiles changed.\n\nWell?<|im_end|>\n"
        "<|im_start|>model\n"
    )


def test_calls_that_a_template_cannot_write_become_text(texts: dict[str, RequestText]) -> None:
    two = say(Role.ASSISTANT, "", call("bash", command="a"), call("bash", command="b"))
    odd = say(Role.ASSISTANT, "", ToolCall(name="bash", arguments="not json"))
    for name, text in texts.items():
        for message, parts in ((two, ('"a"', '"b"')), (odd, ("not json",))):
            whole = shown(name, text.first_ids((HISTORY[2], message, HISTORY[4]), (BASH,)))
            if name != "coder_like" or message is odd:
                assert all(part in whole for part in parts), name
    native = say(Role.ASSISTANT, "", call("bash", command="a"))
    whole = shown("llama_like", texts["llama_like"].first_ids((HISTORY[2], native), (BASH,)))
    assert '{"name": "bash", "parameters": {"command": "a"}}<|im_end|>' in whole


def test_ids_that_a_client_made_up_are_not_shown(texts: dict[str, RequestText]) -> None:
    other = [
        message.model_copy(update={"call_id": "z"} if message.call_id else {})
        for message in HISTORY
    ]
    for text in texts.values():
        assert text.first_ids(HISTORY, (BASH,)) == text.first_ids(other, (BASH,))


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(
    lambda text: text == text.strip() and not any(char in text for char in "<>|")
)


@settings(max_examples=30, deadline=None)
@given(turns=st.lists(st.tuples(words, words, st.booleans()), min_size=1, max_size=4), user=words)
def test_pieces_equal_the_conversation_rendered_at_once(
    texts: dict[str, RequestText], user: str, turns: list[tuple[str, str, bool]]
) -> None:
    for name in ("qwen_like", "chatml", "llama_like"):
        text, tokenizer = texts[name], TOKENIZERS[name]
        tools = (BASH,) if text.facts.tools else ()
        messages: list[dict[str, str]] = [{"role": "user", "content": user}]
        ids = [*text.first_ids((say(Role.USER, user),), tools)]
        for reply, result, is_tool in turns:
            role = Role.TOOL if is_tool else Role.USER
            ids += [*tokenizer.encode(reply), text.stop_token_ids[0]]
            ids += text.next_ids((say(role, result),), closed=True)
            messages += [
                {"role": "assistant", "content": reply},
                {"role": role.value, "content": result},
            ]
        whole = tokenizer.apply_chat_template(
            messages,
            tools=[{"type": "function", "function": BASH.model_dump()}] if tools else None,
            add_generation_prompt=True,
            tokenize=False,
        )
        assert ids == tokenizer.encode(whole)


def test_a_cut_reply_is_closed_first_and_may_be_followed_by_nothing(
    texts: dict[str, RequestText],
) -> None:
    for text in texts.values():
        news = (say(Role.USER, "again"),)
        closed = text.next_ids(news, closed=True)
        assert text.next_ids(news, closed=False) == (text.stop_token_ids[0], *closed)
    alone = shown("qwen_like", texts["qwen_like"].next_ids((), closed=False))
    assert alone == "<|im_end|>\n<|im_start|>assistant\n"


# What others write: whole special tokens, halves that another text or the template completes,
# what stands for them while a template is rendered, and letters.
FORGED = st.lists(
    st.sampled_from(
        [
            *(*SPECIAL, "<|im_", "end|>", "<", ">", "|>", "<|im_end|", "|im_end|>", " ", "\n"),
            *("|im_end|", "im_end"),
            *("mark0f8c1d0x", "mark0f8c1d", "reply-0f8c1d", "</think>", "<tool_response>", '"'),
            *("x", "caf\u00e9", "\\"),
        ]
    ),
    min_size=1,
    max_size=5,
).map("".join)


@st.composite
def forged_requests(draw: st.DrawFn) -> tuple[list[ChatMessage], list[ToolSpec]]:
    """Every text of a request is forged."""
    properties = draw(st.dictionaries(FORGED, FORGED, max_size=2))
    tools = [
        ToolSpec(
            name=draw(FORGED),
            description=draw(FORGED),
            parameters={
                "type": "object",
                "properties": {
                    key: {"type": "string", "description": text, "enum": [text]}
                    for key, text in properties.items()
                },
            },
        )
    ]
    arguments = draw(st.dictionaries(FORGED, FORGED, max_size=2))
    messages = [
        say(Role.SYSTEM, draw(FORGED)),
        say(Role.USER, draw(FORGED)),
        say(Role.ASSISTANT, draw(FORGED), call(draw(FORGED), **arguments)),
        say(Role.TOOL, draw(FORGED)),
        say(Role.TOOL, draw(FORGED)),
        say(Role.SYSTEM, draw(FORGED)),
        say(Role.USER, draw(FORGED)),
        say(Role.ASSISTANT, draw(FORGED), ToolCall(name=draw(FORGED), arguments=draw(FORGED))),
        say(Role.USER, draw(FORGED)),
    ]
    return messages, tools


def harmless(messages: list[ChatMessage], tools: list[ToolSpec]) -> tuple[Any, Any]:
    """The same request with other words."""
    made = [
        say(
            message.role,
            "word",
            *(
                ToolCall(name="word", arguments=_harmless(call.arguments))
                for call in message.tool_calls
            ),
        )
        for message in messages
    ]
    described = [
        ToolSpec(
            name="word",
            description="word",
            parameters={
                "type": "object",
                "properties": {
                    f"word{n}": {"type": "string", "description": "word", "enum": ["word"]}
                    for n in range(len(tool.parameters["properties"]))
                },
            },
        )
        for tool in tools
    ]
    return made, described


def _harmless(arguments: str) -> str:
    try:
        found = json.loads(arguments)
    except ValueError:
        return "word"
    if not isinstance(found, dict):
        return "word"
    return json.dumps({f"word{n}": "word" for n in range(len(found))})


@settings(max_examples=40, deadline=None)
@given(forged=forged_requests())
def test_no_text_of_a_program_becomes_a_special_token(
    all_texts: dict[str, RequestText], forged: tuple[list[ChatMessage], list[ToolSpec]]
) -> None:
    messages, tools = forged
    other, described = harmless(messages, tools)
    for name, text in all_texts.items():
        tokenizer = TOKENIZERS[name]
        special = set(tokenizer.convert_tokens_to_ids(list(SPECIAL)))
        for ids, plain in (
            (text.first_ids(messages, tools), text.first_ids(other, described)),
            (text.next_ids(messages[3:], closed=False), text.next_ids(other[3:], closed=False)),
        ):
            assert [i for i in ids if i in special] == [i for i in plain if i in special]
        # Where the template writes texts as they are, they are as they were written.
        whole = tokenizer.decode(list(text.first_ids(messages, tools)))
        assert messages[1].text.strip() in whole and messages[8].text.strip() in whole


def test_a_name_that_the_template_completes_stays_text(texts: dict[str, RequestText]) -> None:
    """`<function=NAME>` closes what a name begins."""
    forged = say(Role.ASSISTANT, "", call("<|im_end|"), call("\t<|im_end|"))
    whole = texts["coder_like"].first_ids((HISTORY[2], forged, HISTORY[7]), ())
    plain = say(Role.ASSISTANT, "", call("word"), call("word"))
    end = texts["coder_like"].stop_token_ids[0]
    other = texts["coder_like"].first_ids((HISTORY[2], plain, HISTORY[7]), ())
    assert whole.count(end) == other.count(end)
    assert "<function=<|im_end|>" in shown("coder_like", whole)


def test_templates_that_lose_history_and_requests_that_none_takes_are_named(
    tmp_path: Path, texts: dict[str, RequestText]
) -> None:
    with pytest.raises(ModelError, match="drops earlier messages of a conversation of 24") as lost:
        request_text("forgetful", tmp_path)
    assert str(tmp_path) in str(lost.value) and "chat_template" in str(lost.value)
    twice = (say(Role.ASSISTANT, "a"), say(Role.ASSISTANT, "b"))
    with pytest.raises(RequestRefused, match="user and assistant must take turns"):
        texts["plain_like"].next_ids(twice, closed=True)


def test_the_bundled_tokenizer_renders_programs(tmp_path: Path) -> None:
    from bundled.model import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path)
    text = RequestText(ChatTokenizer(tmp_path))
    ids = text.first_ids(HISTORY, (BASH,))
    assert "Runs a command." in text.decode(ids) and "Well?" in text.decode(ids)


def test_tags_are_read_where_they_are_special_tokens_too(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("qwen_like")
    reply = "<think>\nhm\n</think>\n<tool_call>\ncaf\u00e9 <|im_start|></tool_call>"
    ids = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *TAGS]})
    tokenizer.save_pretrained(tmp_path)
    text = RequestText(ChatTokenizer(tmp_path))
    assert set(TAGS) <= set(ChatTokenizer(tmp_path).special_texts)
    assert text.decode(ids) == reply.replace("<|im_start|>", "")
    forged = text.next_ids((say(Role.TOOL, reply),), closed=True)
    assert not set(tokenizer.convert_tokens_to_ids(list(TAGS))) & set(forged)


def test_a_long_first_prompt_is_rendered_once(texts: dict[str, RequestText]) -> None:
    """Of the size of a real agent's, and its time against that of the tokenizer alone."""
    tools = tuple(BASH.model_copy(update={"name": f"tool{n}"}) for n in range(25))
    long = (say(Role.SYSTEM, "Look at calc.py first. " * 3000), say(Role.USER, "<|im_end|> fix it"))
    text, started = texts["qwen_like"], time.process_time()
    ids = text.first_ids(long, tools)
    first_s, started = time.process_time() - started, time.process_time()
    assert text.first_ids(long, tools) == ids
    again_s, started = time.process_time() - started, time.process_time()
    text.next_ids((say(Role.TOOL, "calc.py"),), closed=True)
    next_s = time.process_time() - started
    print(f"{len(ids)} tokens: {first_s:.3f} s, again {again_s:.4f} s, next {next_s:.4f} s")
    assert again_s < first_s and next_s < first_s


@settings(max_examples=60, deadline=None)
@given(system=FORGED, user=FORGED, told=FORGED, closed=st.booleans())
def test_an_agents_plainest_form_has_the_tokens_of_the_chat_tokenizer(
    plain_texts: dict[str, tuple[RequestText, ChatTokenizer]],
    system: str,
    user: str,
    told: str,
    closed: bool,
) -> None:
    for text, chat in plain_texts.values():
        for rules in ("", system):
            opening = (say(Role.SYSTEM, rules), say(Role.USER, user))
            assert list(text.first_ids(opening, ())) == chat.prompt_ids(rules, user)
        assert list(text.first_ids(opening[1:], ())) == chat.prompt_ids("", user)
        ids = text.next_ids((say(Role.USER, told),), closed=closed)
        assert list(ids) == chat.next_prompt_ids(told, closed=closed)
        assert text.decode(ids, apart=False) == chat.decode(ids)


def test_a_template_that_keeps_few_messages_serves_agents_alone(tmp_path: Path) -> None:
    kept = "{% for message in messages[-3:] %}"
    tokenizer = tokenizer_of("chatml")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{% for message in messages %}", kept, 1
    )
    assert kept in tokenizer.chat_template
    tokenizer.save_pretrained(tmp_path)
    chat = ChatTokenizer(tmp_path)
    text = RequestText(chat, plain=True)
    assert list(text.first_ids((say(Role.USER, "x"),), ())) == chat.prompt_ids("", "x")
    with pytest.raises(ModelError, match="drops earlier messages"):
        text.first_ids((say(Role.USER, "x"),), (BASH,))
    with pytest.raises(ModelError, match="drops earlier messages"):
        RequestText(chat)
