"""Any reply of an endpoint is stored and told as it was given, in each dialect, and found again
when its client sends it back. Real Postgres; the clients are the official ones' types."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_records import add_claimed_rollout

from infra.db.database import Database
from infra.db.programs import answer_receipts, model_requests
from infra.db.rollouts import turns
from infra.policy.protocol import ANY, ReplyRequest
from infra.policy.replies import chat_reply
from infra.policy.replies.openai import OpenAIClient
from infra.policy.replies.text_policy import TextPolicy
from mainspring.config.policy import PolicyConfig
from mainspring.programs.matching import key_of
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.parsing.stored import reply_of
from mainspring.programs.record import BranchKind
from mainspring.programs.request import ChatMessage, Dialect, ModelRequest, Role
from tests.gateway.test_round_trips import CLIENTS, TEXTS, TRICKY, VALID, check_echo

MARKS = st.sampled_from(
    [
        '<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>',
        "</think>",
        "<tool_call>",
        "a\0b",
        "half \ud83d of a pair",
        "\ud83d\ude00",
        "<|im_end|>",
    ]
)
SAID = TEXTS | MARKS
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.text(max_size=3),
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["run", "patch", "no_such_tool", "na\u00efve"]),
                    "arguments": VALID | TRICKY | MARKS | st.text(max_size=20),
                }
            ),
        }
    ),
    max_size=3,
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | SAID, "tool_calls": st.none() | CALLS},
    optional={"reasoning_content": st.none() | SAID, "reasoning": SAID},
)
ASKED = ModelRequest(
    dialect=Dialect.CHAT, model="m", messages=(ChatMessage(role=Role.USER, text="hi"),)
)


class Given(OpenAIClient):
    """An endpoint that has answered already."""

    def __init__(self, policy: PolicyConfig, body: Any) -> None:
        super().__init__(policy)
        self._body = body

    async def complete(self, *args: Any, **fields: Any) -> chat_reply.ChatReply:
        return chat_reply.read(self._body)


async def test_any_reply_is_told_as_it_was_given(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    drawn: list[Any] = []

    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        database=None,
    )
    @given(MESSAGES, st.sampled_from(["stop", "tool_calls", "length", "eos_token"]))
    def draw(message: Any, finish_reason: str) -> None:
        drawn.append({"choices": [{"message": message, "finish_reason": finish_reason}]})

    draw()
    policy = PolicyConfig(model="m")
    for body in drawn:
        asked = await model_requests.ask(
            *(db, rollout, 0, 0, ASKED, key_of(ASKED)),
            kind=BranchKind.MAIN,
            setting="",
            is_retry=False,
        )
        made = await TextPolicy(policy, Given(policy, json.loads(json.dumps(body)))).complete(
            ReplyRequest(asked.number, ASKED, (), rollout, "r", 1.0, ANY)
        )
        stored = await model_requests.put_reply(db, rollout, 0, made.call, made.history)
        assert stored.parts == made.reply == reply_of(stored, (), parser_of("none"))
        await answer_receipts.delivered(db, rollout, 0, asked.number, 0)
        _check_given(body["choices"][0], made.reply)
    calls, _ = await turns.history(db, rollout, 0)
    assert len(calls) == len(drawn)
    for call in calls:
        assert call.parts is not None
        for name, client in CLIENTS.items():
            if name != "gemini without ids":  # it cannot tell that arguments were wrapped
                check_echo(client, call.parts, call.number)


def _check_given(choice: Any, reply: Any) -> None:
    message = choice["message"]
    assert reply.text == _whole(message["content"] or "")
    given = [each["function"] for each in message["tool_calls"] or ()]
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [
        (each["name"], _whole(each["arguments"])) for each in given
    ]
    assert reply.is_cut == (choice["finish_reason"] == "length")


def _whole(text: str) -> str:
    """Halves of characters are replaced where they come in; nothing else is."""
    return json.loads(json.dumps(text)).encode(errors="replace").decode()
