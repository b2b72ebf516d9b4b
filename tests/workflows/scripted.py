"""A policy that says what a test tells it to: the fake at the engine's seam, everything else real.

Tokens are the bytes of the text, so that decoding gives the reply back exactly.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from infra.policy.protocol import ANY, Completion, Keep, NoEngineAnswered, SamplingParams, Versions
from infra.policy.weight_label import WeightLabel
from mainspring.programs.request import ChatMessage, ToolSpec
from mainspring.trajectories.turns import PartialCall, ReplyPart, VersionSpan

END = 256
LOGPROB = -0.25
SUBMIT = "THOUGHT: done\n\n```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"


def bash(command: str) -> str:
    return f"THOUGHT: go on\n\n```bash\n{command}\n```"


def called(name: str, **arguments: str | int) -> str:
    """A reply that calls a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def saying(*texts: str) -> Callable[[str, int], str]:
    """The replies one after the other, whatever each request shows of those before."""
    left = iter(texts)
    return lambda rollout, turn: next(left)


class Said:
    """What was said to each call of a rollout, so that a retried activity, which asks again, hears
    the same."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def again(self, request_id: str, say: Callable[[], str]) -> str:
        """The text of an earlier attempt at the same call, or else a new one."""
        call = re.fullmatch(r"(.+\.e\d+\.c\d+)\.\d+", request_id)
        if call is None:
            return say()
        if call[1] not in self._texts:
            self._texts[call[1]] = say()
        return self._texts[call[1]]


class ScriptedPolicy:
    """`say(rollout, turn)` gives the reply of that turn; `asked` counts the requests."""

    def __init__(self) -> None:
        self.say: Callable[[str, int], str] = lambda rollout, turn: SUBMIT
        self.say_by_seed: Callable[[int, int], str] | None = None
        """In place of `say`, for requests with a seed."""
        self._said = Said()
        self.asked: list[str] = []
        self.cut: dict[str, PartialCall] = {}
        """Replies whose first attempt ends with these tokens and no more."""
        self.begun: dict[str, PartialCall] = {}
        """What replies were asked to continue."""
        self.versions: dict[str, Versions] = {}
        """Policy versions that each reply was asked for under."""
        self.prompts: dict[str, list[int]] = {}
        self.gate: asyncio.Event | None = None
        self.hold: Callable[[str], Awaitable[None]] | None = None
        """Awaited before each reply, with the rollout, and each load of weights, with its path."""
        self.published: list[str] = []

    async def generate(
        self,
        input_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        sticky: str,
        versions: Versions = ANY,
        begun: PartialCall | None = None,
        keep: Keep | None = None,
        num_closed: int = 0,
        home: str = "",
    ) -> Completion:
        if self.gate is not None:
            await self.gate.wait()
        if self.hold is not None:
            await self.hold(sticky)
        turn = input_ids.count(END)
        self.asked.append(f"{sticky}.t{turn}")
        self.prompts[f"{sticky}.t{turn}"] = list(input_ids)
        self.versions[f"{sticky}.t{turn}"] = versions
        if begun is not None:
            self.begun[f"{sticky}.t{turn}"] = begun
        if keep is not None and (partial := self.cut.pop(f"{sticky}.t{turn}", None)):
            keep(ReplyPart.of_call(partial))
            raise NoEngineAnswered("the engine died", 1)
        if params.seed is not None and self.say_by_seed is not None:
            said = self.say_by_seed(params.seed, turn)
        else:
            said = self._said.again(request_id, lambda: self.say(sticky, turn))
        ids = (*said.encode(), END)
        span = VersionSpan(versions.at_least or 0, 0, len(ids))
        return Completion(ids, (LOGPROB,) * len(ids), (span,), "stop", 0.0)

    async def publish(self, engine: str, weights: Path, label: WeightLabel) -> None:
        if self.hold is not None:
            await self.hold(str(weights))
        self.published.append(str(weights))

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        return False

    async def aclose(self) -> None:
        return None


class ByteText:
    stop_token_ids = (END,)

    def under(self, variables: Mapping[str, Any]) -> Self:
        return self

    def first_ids(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> bytes:
        offered = "".join(f"<{tool.name}>\n" for tool in tools)
        return (offered + "".join(f"{message.text}\n" for message in messages)).encode()

    def next_ids(self, messages: Sequence[ChatMessage], *, closed: bool) -> bytes:
        return "\n".join(message.text for message in messages).encode()

    def decode(self, ids: Sequence[int], *, apart: bool = True) -> str:
        return bytes(i for i in ids if i != END).decode()

    def written(self, ids: Sequence[int]) -> str:
        return self.decode(ids)
