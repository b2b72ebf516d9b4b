"""Replies to programs: which branch a request continues, what bounds a reply, what is stored."""

import json
from pathlib import Path

import pytest

from infra.policy.engines.partial import UnknownWeights
from infra.policy.model.request_text import RequestText
from infra.policy.protocol import (
    ANY,
    MadeReply,
    PromptTooLong,
    ReplyRequest,
    RequestRefused,
    Versions,
)
from infra.policy.replies.token_policy import TokenPolicy
from infra.policy.weight_label import WeightLabel
from mainspring.config.policy import PolicyConfig
from mainspring.ids import RolloutId
from mainspring.programs.matching import Noise, StoredCall
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.reply import Finish
from mainspring.programs.request import ChatMessage, Dialect, ModelRequest, Role, ToolCall, ToolSpec
from mainspring.trajectories.turns import PartialCall, VersionSpan
from tests.infra.policy.chat_templates import request_text, tokenizer_of
from tests.infra.policy.scripted_engines import ScriptedEngines, no_weights

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
TOOLS = (ToolSpec(name="bash"),)
TOKENIZER = tokenizer_of("qwen_like")
END = TOKENIZER.eos_token_id


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> RequestText:
    return request_text("qwen_like", tmp_path_factory.mktemp("qwen"))


class Rollout:
    """Asks for one reply after the other, as the activity does."""

    def __init__(self, text: RequestText, noise: str = "", **config: int) -> None:
        self.replies = ["hello"]
        self.engines = ScriptedEngines(self._says)
        self.stored: list[StoredCall] = []
        self.policy = TokenPolicy(
            PolicyConfig(**{"max_context": 4000, "max_new_tokens": 500, **config}),
            self.engines,
            text,
            parser_of("hermes"),
            no_weights,
            Noise((noise,) if noise else ()),
        )

    def _says(self, bound: int) -> tuple[list[int], list[int]]:
        said = self.replies[0] if len(self.replies) == 1 else self.replies.pop(0)
        return [*TOKENIZER.encode(said, add_special_tokens=False), END], []

    async def ask(
        self,
        *messages: ChatMessage,
        tools: tuple[ToolSpec, ...] = TOOLS,
        max_tokens: int | None = None,
        number: int | None = None,
        versions: Versions = ANY,
        begun: PartialCall | None = None,
    ) -> MadeReply:
        number = len(self.stored) if number is None else number
        made = await self.policy.complete(
            ReplyRequest(
                number=number,
                request=ModelRequest(
                    dialect=Dialect.CHAT,
                    model="any",
                    messages=messages,
                    tools=tools,
                    max_tokens=max_tokens,
                ),
                stored=self.stored,
                rollout=RolloutId("r"),
                request_id=str(number),
                temperature=1.0,
                versions=versions,
                seed=7,
                begun=begun,
            )
        )
        self.stored.append(StoredCall(made.call, made.history))
        return made


def user(text: str) -> ChatMessage:
    return ChatMessage(role=Role.USER, text=text)


def result(text: str, call_id: str) -> ChatMessage:
    return ChatMessage(role=Role.TOOL, text=text, call_id=call_id)


def echoed(made: MadeReply, id: str) -> ChatMessage:
    """As clients send it back: ids of their own, arguments written anew, no reasoning."""
    calls = tuple(
        call.model_copy(
            update={"id": id, "arguments": json.dumps(json.loads(call.arguments), indent=1)}
        )
        for call in made.reply.tool_calls
    )
    return ChatMessage(role=Role.ASSISTANT, text=made.reply.text + "\n", tool_calls=calls)


async def test_a_request_continues_what_it_was_told(text: RequestText) -> None:
    rollout = Rollout(text)
    rollout.replies = [f"<think>\nhm\n</think>\n\nI look.\n{CALL}", "done"]
    first = await rollout.ask(user("fix it"))
    assert first.reply.reasoning == "hm" and first.reply.finish is Finish.TOOL_CALLS
    assert first.call.parent is None and first.call.prompt_start == 0
    messages = (user("fix it"), echoed(first, "x"), result("calc.py", "x"))
    second = await rollout.ask(*messages)
    assert second.call.parent == 0 and second.call.prompt_start == first.call.end
    new = TOKENIZER.decode(list(second.call.prompt_ids))
    assert new.startswith("\n<|im_start|>user\n<tool_response>\ncalc.py\n</tool_response>")
    consumed = rollout.engines.served["1"].consumed
    assert consumed == [
        *(*first.call.prompt_ids, *first.call.completion_ids),
        *second.call.prompt_ids,
    ]
    assert "hm" in TOKENIZER.decode(consumed) and second.call.finish_reason == "stop"
    third = await rollout.ask(*messages, echoed(second, "y"), user("and now?"))
    assert third.call.parent == 1
    assert rollout.engines.params["2"].seed == 7


async def test_other_history_begins_a_branch_of_its_own(text: RequestText) -> None:
    rollout = Rollout(text)
    first = await rollout.ask(user("fix it"))
    said = echoed(first, "")
    assert (await rollout.ask(user("fix that"), said, user("more"))).call.parent is None
    assert (await rollout.ask(user("fix it"), said, user("more"), tools=())).call.parent is None
    invented = ChatMessage(role=Role.ASSISTANT, text="I did it.")
    assert (await rollout.ask(user("fix it"), invented, user("more"))).call.parent is None
    again = await rollout.ask(user("fix it"), said, invented, user("more"))
    assert again.call.parent == 0
    assert "I did it." in TOKENIZER.decode(list(again.call.prompt_ids))
    assert again.call.number == 4


async def test_the_same_history_twice_is_continued_from_the_newest_before(
    text: RequestText,
) -> None:
    rollout = Rollout(text)
    first = await rollout.ask(user("fix it"))
    await rollout.ask(user("fix it"))
    more = (user("fix it"), echoed(first, ""), user("more"))
    assert (await rollout.ask(*more, number=4)).call.parent == 1
    assert (await rollout.ask(*more, number=1)).call.parent == 0


async def test_noise_is_ignored_when_matching_and_shown_as_it_was(text: RequestText) -> None:
    rollout = Rollout(text, noise="Chunk ID: [0-9a-f]+")
    rollout.replies = [CALL, "seen"]
    first = await rollout.ask(user("fix it"))
    told = (user("fix it"), echoed(first, "a"), result("Chunk ID: 12ab\nok", "a"))
    second = await rollout.ask(*told)
    again = (user("fix it"), echoed(first, "b"), result("Chunk ID: 99ff\nok", "b"))
    third = await rollout.ask(*again, echoed(second, ""), user("more"))
    assert third.call.parent == 1
    shown = TOKENIZER.decode(rollout.engines.served["2"].consumed)
    assert "12ab" in shown and "99ff" not in shown


async def test_bounds_of_a_reply(text: RequestText) -> None:
    rollout = Rollout(text, max_context=64, max_new_tokens=30)
    rollout.replies = ["word " * 40]
    cut = await rollout.ask(user("x"), tools=(), max_tokens=5)
    assert len(cut.call.completion_ids) == 5 and cut.reply.finish is Finish.LENGTH
    after = await rollout.ask(user("x"), echoed(cut, ""), user("more"), tools=(), max_tokens=99)
    assert after.call.parent == 0 and after.call.prompt_ids[0] == END
    room = 64 - after.call.prompt_start - len(after.call.prompt_ids)
    assert rollout.engines.params["1"].max_new_tokens == room < 30
    with pytest.raises(PromptTooLong) as full:
        await rollout.ask(user("word " * 100), tools=())
    assert full.value.max_tokens == 64 and full.value.num_tokens > 64
    assert "0 of 64 tokens are left" in str(full.value)
    request = ModelRequest(dialect=Dialect.CHAT, model="", messages=(user("x"),))
    prompt = await rollout.policy._prompt(text, request, None, [], below=9)
    assert prompt.num_tokens == len(prompt.ids) == len(cut.call.prompt_ids)


async def test_a_begun_reply_is_continued(text: RequestText) -> None:
    rollout = Rollout(text)
    begun = PartialCall((70, 71), (-0.5, -0.25), (VersionSpan(3, 0, 2),), 0.1)
    rollout.engines.version = 4
    made = await rollout.ask(user("x"), begun=begun, versions=Versions(4))
    assert made.call.completion_ids[:2] == (70, 71) and made.call.spans[0] == VersionSpan(3, 0, 2)
    only = await rollout.ask(user("x"), begun=begun, versions=Versions(4, only=True))
    assert only.call.spans[0].version == 4


async def test_an_engine_with_other_weights_is_given_the_right_ones(text: RequestText) -> None:
    given: list[tuple[str, WeightLabel]] = []

    class Stale(ScriptedEngines):
        async def generate(self, *args, **options):  # type: ignore[no-untyped-def]
            if not given:
                raise UnknownWeights("http://one", "default", ANY)
            return await ScriptedEngines.generate(self, *args, **options)

        async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
            given.append((engine, label))
            return True

    async def newest(version: int | None) -> tuple[Path, WeightLabel]:
        return Path("weights"), WeightLabel(5, "uid")

    rollout = Rollout(text)
    stale = Stale(rollout.engines.says)
    rollout.policy = TokenPolicy(PolicyConfig(), stale, text, parser_of("hermes"), newest)
    assert (await rollout.ask(user("x"))).reply.text == "hello"
    assert given == [("http://one", WeightLabel(5, "uid"))]


async def test_what_is_nested_too_deeply_is_refused(text: RequestText) -> None:
    rollout = Rollout(text)
    schema: dict[str, object] = {}
    for _ in range(3000):
        schema = {"items": schema}
    with pytest.raises(RequestRefused, match="nested too deeply"):
        await rollout.ask(user("x"), tools=(ToolSpec(name="deep", parameters=schema),))
    arguments = '{"a":' * 600 + "1" + "}" * 600
    calls = (ToolCall(name="bash", arguments=arguments),)
    invented = ChatMessage(role=Role.ASSISTANT, tool_calls=calls)
    with pytest.raises(RequestRefused):
        await rollout.ask(user("x"), invented, user("more"))
    rollout.replies = [f'<tool_call>{{"name": "bash", "arguments": {arguments}}}</tool_call>']
    told = await rollout.ask(user("x"))
    assert (await rollout.ask(user("x"), echoed(told, "a"), result("y", "a"))).call.parent == 0
