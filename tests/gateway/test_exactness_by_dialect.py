"""What the trainer gets is what the engine consumed and produced, in each of the four dialects.

The histories of `test_exactness`, but each request is written as a client writes it and read by the
gateway's parser, and each reply goes to the client in the dialect's answer and comes back as the
client's echo of that.
"""

import asyncio
import json
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.dialects import json_value
from gateway.dialects.protocol import Envelope, ParsedRequest
from infra.policy.protocol import MadeReply
from mainspring.programs.reply import Answer
from mainspring.programs.request import ChatMessage, ModelRequest, ToolSpec
from tests.gateway.dialect_writers import WRITERS, Body, Writer, as_sent
from tests.infra.policy.chat_templates import NAMES
from tests.infra.policy.program_histories import Figures, History, Step
from tests.infra.policy.test_exactness import check, known

NUM_HISTORIES = 40
"""Of each dialect."""
NUM_LONG = 2_500
at_will = (HealthCheck.too_slow, HealthCheck.data_too_large)


@dataclass(slots=True)
class SpokenHistory(History):
    """A program that speaks a dialect."""

    writer: Writer = field(kw_only=True)
    asked: ParsedRequest | None = None

    def _sent(self, request: ModelRequest) -> ModelRequest:
        self.asked = self._parsed(self.writer.body(request))
        return self.asked.request

    def _echo(self, made: MadeReply) -> ChatMessage:
        assert self.asked is not None
        answer = Answer(
            number=made.call.number,
            reply=made.reply,
            num_prompt_tokens=made.call.prompt_start + len(made.call.prompt_ids),
            num_completion_tokens=len(made.call.completion_ids),
        )
        told = json.loads(json.dumps(self.writer.wire.body(self.asked, answer), allow_nan=False))
        _, echo, _ = self._parsed(self.writer.echoing(told)).request.messages
        calls = tuple(
            call.model_copy(update={"arguments": self._written(call.arguments)})
            for call in echo.tool_calls
        )
        return echo.model_copy(update={"tool_calls": calls})

    def _tools(self) -> tuple[ToolSpec, ...]:
        """Of two with one name the first: a gateway refuses such a request."""
        by_name: dict[str, ToolSpec] = {}
        for tool in History._tools(self):
            by_name.setdefault(tool.name, tool)
        return tuple(by_name.values())

    def _parsed(self, body: Body) -> ParsedRequest:
        return self.writer.wire.parse(json_value.decoded(as_sent(body)), Envelope(model="any"))


def run(dialect: str, num_histories: int) -> Figures:
    figures = Figures()

    @settings(max_examples=num_histories, deadline=None, suppress_health_check=at_will)
    @given(
        name=st.sampled_from(NAMES),
        seed=st.integers(0, 2**32),
        steps=st.lists(st.sampled_from(Step), min_size=1, max_size=8),
    )
    def play(name: str, seed: int, steps: list[Step]) -> None:
        text, tokenizer = known(name)
        history = SpokenHistory(
            text,
            tokenizer,  # type: ignore[arg-type]
            random.Random(seed),
            writer=WRITERS[dialect],
        )
        asyncio.run(history.play(steps))
        check(history)
        figures.add(history)

    play()
    print(f"{dialect}: {figures}")
    return figures


@pytest.mark.parametrize("dialect", WRITERS)
def test_samples_are_what_the_engine_saw_in_each_dialect(dialect: str) -> None:
    assert run(dialect, NUM_HISTORIES).counts["calls that extend another"] > NUM_HISTORIES / 10


@pytest.mark.long
@pytest.mark.parametrize("dialect", WRITERS)
def test_samples_of_many_histories_in_each_dialect(dialect: str) -> None:
    assert run(dialect, NUM_LONG).counts["histories"] >= NUM_LONG
