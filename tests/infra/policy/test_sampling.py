"""[policy.sampling] on its way to engines, endpoints and the chat template, and replies that a stop
string ended: tokens that are trained are those that were served."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.policy.engines.client import EngineClient
from infra.policy.engines.sampling_params import sampling_params
from infra.policy.model.request_text import RequestText
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import ANY, MadeReply, ReplyRequest, SamplingParams
from infra.policy.replies.endpoint_errors import PolicyRefused, RequestNotTaken
from infra.policy.replies.openai import OpenAIClient
from infra.policy.replies.token_policy import TokenPolicy
from mainspring.config.policy import PolicyConfig
from mainspring.config.sampling import SamplingConfig
from mainspring.errors import EngineError, ModelError
from mainspring.ids import RolloutId
from mainspring.programs.matching import StoredCall
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.request import ChatMessage, Dialect, ModelRequest, Role
from mainspring.trajectories.samples import samples_of
from mainspring.trajectories.turns import PartialCall, VersionSpan
from tests.chat_endpoint import Endpoint, chat_endpoint
from tests.infra.policy.engine_stub import REPLY, engine_stub
from tests.infra.policy.engines import serving
from tests.infra.policy.scripted_engines import ScriptedEngines, no_weights
from tests.infra.policy.tiny_model import make_tokenizer, save_tiny_model

ALL = SamplingConfig(
    top_p=0.9,
    top_k=20,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    stop=("</answer>", "\n\n"),
    chat_template_kwargs={"enable_thinking": False},
)
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and enable_thinking is defined and not enable_thinking %}"
    "{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% elif style is defined %}({{ style.tone }}) {% endif %}{% endif %}"
)


def test_requests_without_the_section_are_what_they_were() -> None:
    params = SamplingParams(max_new_tokens=50, stop_token_ids=(2, 0), seed=7)
    assert json.dumps(sampling_params(params, 8)) == (
        '{"max_new_tokens": 42, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, '
        '"stop_token_ids": [2, 0], "sampling_seed": 7}'
    )
    unseeded = SamplingParams(max_new_tokens=50, temperature=0)
    assert json.dumps(sampling_params(unseeded, 0)) == (
        '{"max_new_tokens": 50, "temperature": 0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, '
        '"stop_token_ids": []}'
    )


async def test_engines_get_every_field() -> None:
    with engine_stub() as stub:
        async with EngineClient([stub.url]) as client:
            params = SamplingParams(max_new_tokens=50, sampling=ALL)
            await client.generate([5, 6], params, request_id="r", sticky="a")
    [body] = [body for path, body in stub.asked if path == "/generate"]
    sent = body["sampling_params"]
    assert (sent["top_p"], sent["top_k"], sent["min_p"]) == (0.9, 20, 0.05)
    assert sent["repetition_penalty"] == 1.1 and sent["stop"] == ["</answer>", "\n\n"]
    assert (sent["presence_penalty"], sent["frequency_penalty"]) == (0.5, -0.5)
    assert "chat_template_kwargs" not in sent


@pytest.mark.parametrize(
    ("sampling", "prompts"),
    [
        (SamplingConfig(top_p=0.5), [[5, 6, 9], [5, 6, 9, 7]]),
        # An engine counts the tokens of one request alone: sampled from its first token.
        (SamplingConfig(presence_penalty=1.0), [[5, 6], [5, 6]]),
    ],
)
async def test_a_reply_that_depends_on_its_tokens_is_not_continued(
    sampling: SamplingConfig, prompts: list[list[int]]
) -> None:
    cut = {**REPLY, "meta_info": REPLY["meta_info"] | {"finish_reason": {"type": "abort"}}}
    begun = PartialCall((9,), (-0.25,), (VersionSpan(0, 0, 1),), 0.1)
    with engine_stub() as stub:
        stub.reply = cut
        async with EngineClient([stub.url]) as client:
            params = SamplingParams(max_new_tokens=50, sampling=sampling)
            asking = asyncio.create_task(
                client.generate([5, 6], params, request_id="r", sticky="a", begun=begun)
            )
            while not stub.asked:
                await asyncio.sleep(0.001)
            stub.reply = dict(REPLY)
            made = await asking
    assert [body["input_ids"] for _, body in stub.asked] == prompts
    assert made.output_ids == ((9, 7, 7) if sampling.cuts else (7,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("thinking")
    make_tokenizer(THINKING).save_pretrained(directory)
    return directory


def user(text: str) -> ChatMessage:
    return ChatMessage(role=Role.USER, text=text)


def assistant(text: str) -> ChatMessage:
    return ChatMessage(role=Role.ASSISTANT, text=text)


@pytest.mark.parametrize("plain", [True, False])
def test_variables_reach_every_prompt(folder: Path, plain: bool) -> None:
    chat = ChatTokenizer(folder)
    text = RequestText(chat, plain=plain)
    quiet = text.under({"enable_thinking": False})
    assert quiet is text.under({"enable_thinking": False}) and text.under({}) is text
    assert quiet.under({}).first_ids([user("x")], ()) == text.first_ids([user("x")], ())

    def prompts(of: RequestText) -> list[str]:
        first = of.first_ids([user("one")], ())
        # As an agent's turn, and with what only the richer form has.
        later = of.next_ids([user("two")], closed=True)
        richer = of.next_ids([user("two"), assistant("so"), user("three")], closed=True)
        return [of.written(ids) for ids in (first, later, richer)]

    for loud, silent in zip(prompts(text), prompts(quiet), strict=True):
        assert loud.endswith("<|im_start|>assistant\n")
        assert silent == loud + "<think>\n\n</think>\n\n"
    toned = text.under({"style": {"tone": "dry"}})
    assert prompts(toned)[1].endswith("(dry) ")
    assert ChatTokenizer(folder, variables={"enable_thinking": False}).prompt_ids("", "one") == [
        *quiet.first_ids([user("one")], ())
    ]


def test_a_variable_that_the_template_does_not_use_is_refused(folder: Path) -> None:
    chat = ChatTokenizer(folder)
    for name in ("enable_thinkin", "thinking", "Enable_thinking"):
        with pytest.raises(ModelError, match=f"does not use '{name}'") as refused:
            chat.under({name: False})
        assert "chat_template_kwargs" in (refused.value.remedy or "")
        with pytest.raises(ModelError, match="does not use"):
            ChatTokenizer(folder, variables={name: False})


class Asked:
    """Requests of one rollout, one after the other."""

    def __init__(self, engines: Any, text: RequestText, sampling: SamplingConfig) -> None:
        self.stored: list[StoredCall] = []
        self.sampling = sampling
        config = PolicyConfig(max_context=2000, max_new_tokens=60, sampling=sampling)
        self.policy = TokenPolicy(config, engines, text, parser_of("hermes"), no_weights)

    async def ask(self, *messages: ChatMessage, begun: PartialCall | None = None) -> MadeReply:
        request = ModelRequest(dialect=Dialect.CHAT, model="any", messages=messages)
        made = await self.policy.complete(
            ReplyRequest(
                number=len(self.stored),
                request=request,
                stored=self.stored,
                rollout=RolloutId("r"),
                request_id=str(len(self.stored)),
                temperature=1.0,
                versions=ANY,
                seed=7 + len(self.stored),
                begun=begun,
                sampling=self.sampling,
            )
        )
        self.stored.append(StoredCall(made.call, made.history))
        return made


async def test_what_a_program_counts_is_what_its_request_will_have(folder: Path) -> None:
    text = RequestText(ChatTokenizer(folder))
    engines = ScriptedEngines(lambda bound: ([70, text.stop_token_ids[0]], []))
    quiet = SamplingConfig(chat_template_kwargs={"enable_thinking": False})
    asked = Asked(engines, text, quiet)
    made = await asked.ask(user("x"))
    request = ModelRequest(dialect=Dialect.CHAT, model="any", messages=(user("x"),))

    async def stored() -> list[StoredCall]:
        return []

    assert await asked.policy.count(request, stored, quiet) == len(made.call.prompt_ids)
    assert await asked.policy.count(request, stored) < len(made.call.prompt_ids)


async def test_tokens_trained_are_tokens_served_where_a_stop_string_ends_replies(
    tmp_path: Path,
) -> None:
    """Against the real engine: what its two requests consumed and gave is the sample."""
    model = save_tiny_model(tmp_path / "model")
    text = RequestText(ChatTokenizer(model))
    with serving(model) as url:
        async with EngineClient([url]) as client:
            free = await Asked(client, text, SamplingConfig()).ask(user("one"))
            written = text.written(free.call.completion_ids)
            stop = written[20:22]
            asked = Asked(client, text, SamplingConfig(stop=(stop,)))
            first = await asked.ask(user("one"))
            second = await asked.ask(user("one"), assistant(first.reply.text), user("two"))
    length = len(first.call.completion_ids)
    assert first.call.finish_reason == "stop" and not first.reply.is_cut
    assert first.call.completion_ids == free.call.completion_ids[:length]
    assert first.call.logprobs == pytest.approx(free.call.logprobs[:length], abs=1e-4)
    assert stop in text.written(first.call.completion_ids)
    assert stop not in text.written(first.call.completion_ids[:-1])
    # It did not end itself: its end token is the prompt's, and is not trained.
    end = text.stop_token_ids[0]
    assert first.call.completion_ids[-1] != end
    assert second.call.parent == 0 and second.call.prompt_ids[0] == end
    [sample] = samples_of(RolloutId("r"), [first.call, second.call], reward=1.0)
    trained = sample.token_ids[sample.action_mask].tolist()
    assert trained == [*first.call.completion_ids, *second.call.completion_ids]
    assert sample.logprobs[sample.action_mask].tolist() == pytest.approx(
        [*first.call.logprobs, *second.call.logprobs]
    )


async def test_a_stop_string_that_began_before_a_cut_ends_the_reply(folder: Path) -> None:
    """No engine sees it whole: the tokens after it were not the policy's to say."""
    text = RequestText(ChatTokenizer(folder))
    encode = make_tokenizer().encode
    before, after = encode("so a </ans", add_special_tokens=False), encode("wer> and more")
    engines = ScriptedEngines(lambda bound: ([*after, text.stop_token_ids[0]], [1]), version=3)
    begun = PartialCall(
        tuple(before), (-0.5,) * len(before), (VersionSpan(3, 0, len(before)),), 0.1
    )
    asked = Asked(engines, text, SamplingConfig(stop=("never", "</answer>")))
    made = await asked.ask(user("x"), begun=begun)
    call, produced = made.call, engines.served["0"].produced
    assert call.completion_ids == produced[: len(call.completion_ids)]
    assert "</answer>" in made.reply.text and "</answer> and" not in made.reply.text
    assert "</answer>" not in text.written(call.completion_ids[:-1])
    assert len(call.logprobs) == len(call.completion_ids) == call.spans[-1].end
    assert call.logprobs[: len(before)] == begun.logprobs and call.finish_reason == "stop"
    plain = await Asked(engines, text, SamplingConfig()).ask(user("x"), begun=begun)
    assert plain.call.completion_ids == engines.served["0"].produced


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with chat_endpoint() as endpoint:
        yield endpoint


async def completed(url: str, sampling: SamplingConfig) -> None:
    client = OpenAIClient(PolicyConfig(model="m1", engines=(url,)))
    try:
        await client.complete(
            [{"role": "user", "content": "one"}],
            max_tokens=50,
            temperature=0.5,
            sticky="r",
            sampling=sampling,
        )
    finally:
        await client.aclose()


async def test_endpoints_get_the_fields_that_are_set(endpoint: Endpoint) -> None:
    await completed(endpoint.url, ALL)
    await completed(endpoint.url, SamplingConfig(top_k=-1, stop=()))
    await completed(endpoint.url, SamplingConfig())
    plain = {
        "model": "m1",
        "messages": [{"role": "user", "content": "one"}],
        "temperature": 0.5,
        "max_tokens": 50,
    }
    beside = {
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "stop": ["</answer>", "\n\n"],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert endpoint.asked == [plain | beside, plain | {"top_k": -1, "stop": []}, plain]
    assert list(endpoint.asked[2]) == ["model", "messages", "temperature", "max_tokens"]


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ({"message": "Unrecognized request argument supplied: top_k"}, "policy.sampling.top_k"),
        ({"message": "Unknown parameter", "param": "min_p"}, "policy.sampling.min_p"),
        ({"message": "'chat_template_kwargs' is not permitted"}, ".chat_template_kwargs"),
    ],
)
async def test_a_field_that_an_endpoint_refuses_is_named(
    endpoint: Endpoint, said: dict[str, str], remedy: str
) -> None:
    for _ in range(2):
        endpoint.script.append((400, {}, {"error": said}))
    with pytest.raises(RequestNotTaken) as refused:
        await completed(endpoint.url, ALL)
    assert f"leave out policy.sampling.{remedy.rpartition('.')[2]}: " in (
        refused.value.remedy or ""
    )
    # Before a run has anything stored, by one request.
    policy = PolicyConfig(model="m1", engines=(endpoint.url,), sampling=ALL)
    client = OpenAIClient(policy)
    with pytest.raises(EngineError) as found:
        await client.check(policy)
    await client.aclose()
    assert isinstance(found.value, PolicyRefused) and remedy in (found.value.remedy or "")
    assert endpoint.asked[-1]["top_k"] == 20


async def test_a_refusal_without_a_name_asks_about_all_that_was_sent(endpoint: Endpoint) -> None:
    endpoint.script.append((400, {}, {"error": {"message": "bad request"}}))
    with pytest.raises(RequestNotTaken) as refused:
        await completed(endpoint.url, SamplingConfig(top_p=0.9))
    assert refused.value.remedy == (
        "does the endpoint take these policy.temperature, policy.sampling.top_p and max_new_tokens?"
    )
