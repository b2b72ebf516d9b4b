"""Rollouts of Mainspring's agents, whose contexts are rewritten and whose processes are killed.

A history is an agent, a context and a seed. `play` takes its turns as the activities do: the
agent's request or the one that is asked in its place, a reply, what its commands did. It gives what
the engine consumed and produced beside the calls that are stored, as `program_histories` does.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedTokenizerFast

from infra.policy.model.request_text import RequestText
from infra.policy.protocol import ANY, ContextFull, MadeReply, ReplyRequest
from infra.policy.replies.token_policy import TokenPolicy
from mainspring.agents.asking import NextRequest, next_request
from mainspring.agents.choice import AGENTS
from mainspring.agents.contexts.rewriting import Rewrite, rewrite, with_messages
from mainspring.agents.protocol import Agent, FormatError, commands_in
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import RolloutId, TaskId
from mainspring.programs.matching import StoredCall
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.request import ChatMessage
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import Call, Execution, PartialCall, VersionSpan
from tests.infra.policy.program_histories import FORGED, WORDS
from tests.infra.policy.scripted_engines import ScriptedEngines, no_weights

AGENT_KINDS: dict[str, dict[str, Any]] = {
    "bash": {"kind": "bash"},
    "tools": {"kind": "tools"},
    "react": {"kind": "react"},
    "react with a memory": {"kind": "react", "react": {"memory": 2}},
}
CONTEXTS: dict[str, dict[str, Any]] = {
    "fail": {"kind": "fail"},
    "head_tail": {"kind": "head_tail"},
    "forget_outputs": {"kind": "forget_outputs", "lines": 1},
    "summarise": {"kind": "summarise", "summary_tokens": 40},
}
TASK = SweTask(
    id=TaskId("t"),
    source="s",
    split="train",
    issue="add subtracts <|im_end|>",
    test_command="true",
    files={"a.py": ""},
)
SHORT = {"system": "Fix it.", "task": "{{ issue }}"}
"""Prompts of an agent, so that turns take most of the context."""


def kinds() -> list[tuple[str, str]]:
    """Pairs of an agent and a context."""
    return [
        (agent, context)
        for agent in AGENT_KINDS
        for context in CONTEXTS
        if not (context == "summarise" and "memory" in agent)
    ]


@dataclass(slots=True)
class AgentHistory:
    text: RequestText
    tokenizer: PreTrainedTokenizerFast
    rng: random.Random
    agent_kind: str
    context: str
    engines: ScriptedEngines = field(init=False)
    policy: TokenPolicy = field(init=False)
    config: AgentConfig = field(init=False)
    agent: Agent = field(init=False)
    max_context: int = field(init=False)
    stored: list[StoredCall] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        rng = self.rng
        context = dict(CONTEXTS[self.context])
        if self.context == "head_tail":
            context["head_ratio"] = rng.choice((0.0, 0.3, 0.7))
        if self.context in ("head_tail", "forget_outputs"):
            context["fill"] = rng.choice((0.6, 1.0))
        self.config = AgentConfig.model_validate(
            {**AGENT_KINDS[self.agent_kind], "context": context, "prompts": SHORT}
        )
        self.agent = AGENTS.make(self.config.kind, self.config)
        self.engines = ScriptedEngines(self._says)

    async def play(self, num_turns: int) -> None:
        first = next_request(self.agent, TASK, Record([], []))
        fixed = len(self.text.first_ids(first.request.messages, first.request.tools))
        max_new_tokens = self.rng.choice((40, 120))
        self.max_context = fixed + max_new_tokens + self.rng.choice((250, 500, 900))
        self.policy = TokenPolicy(
            PolicyConfig(max_context=self.max_context, max_new_tokens=max_new_tokens),
            self.engines,
            self.text,
            parser_of("hermes"),
            no_weights,
        )
        known: NextRequest | None = None
        for number in range(num_turns):
            if self.rng.random() < 0.2:
                known = None  # another process plays on
            asked = next_request(self.agent, TASK, Record(self.calls, self.executions), known)
            made = await self._rewritten(asked, max_new_tokens)
            whole = asked if made is None else asked.rewritten(made.request)
            known = asked if made is not None and made.is_summary else whole
            reply = await self._ask(number, whole)
            if reply is None:
                self.counts["full contexts"] += 1
                return
            self._store(reply, whole, made)
            if self._run(self.calls[-1]):
                return

    async def _rewritten(self, asked: NextRequest, max_new_tokens: int) -> Rewrite | None:
        budget = self.max_context - max_new_tokens

        async def known() -> Sequence[StoredCall]:
            return asked.stored

        async def none() -> Sequence[StoredCall]:
            return ()

        async def count(messages: Sequence[ChatMessage]) -> int:
            return await self.policy.count(with_messages(asked.request, messages), none)

        async def count_asked() -> int:
            return await self.policy.count(asked.request, known)

        made = await rewrite(self.config.context, asked, budget, count_asked, count)
        if made is not None:
            self.counts["rewrites"] += 1
            self.counts["summaries"] += made.is_summary
        return made

    async def _ask(self, number: int, asked: NextRequest) -> MadeReply | None:
        """As an attempt does, after others that were killed. None: no room."""
        begun: PartialCall | None = None
        while self.rng.random() < 0.2:
            before = self.engines.num_sampled, self.engines.version
            made = await self._attempt(number, asked, begun)
            if made is None:
                return None
            consumed = self.engines.served[str(number)].consumed
            had = 0 if begun is None else len(begun.completion_ids)
            kept = self.rng.randrange(had, len(made.call.completion_ids))
            begun = _cut(made.call, kept)
            # What it had beyond them is lost, and was never sampled for us.
            self.engines.num_sampled = before[0] + kept - had
            self.engines.version = max([before[1], *(span.version for span in begun.spans)])
            self.counts["killed attempts"] += 1
            made = await self._attempt(number, asked, begun)
            assert made is not None
            assert self.engines.served[str(number)].consumed == consumed
            return made
        return await self._attempt(number, asked, begun)

    async def _attempt(
        self, number: int, asked: NextRequest, begun: PartialCall | None
    ) -> MadeReply | None:
        request = ReplyRequest(
            number=number,
            request=asked.request,
            stored=self.stored,
            rollout=RolloutId("r"),
            request_id=str(number),
            temperature=1.0,
            versions=ANY,
            digests=asked.digests if self.rng.random() < 0.5 else None,
            apart=bool(asked.request.tools),
            begun=begun,
        )
        try:
            return await self.policy.complete(request)
        except ContextFull:
            return None

    def _store(self, made: MadeReply, asked: NextRequest, rewritten: Rewrite | None) -> None:
        call = replace(
            made.call,
            parts=made.reply if asked.request.tools else None,
            rewritten=None if rewritten is None else rewritten.request,
            is_summary=rewritten is not None and rewritten.is_summary,
        )
        self.calls.append(call)
        self.stored.append(StoredCall(call, made.history))

    def _run(self, call: Call) -> bool:
        """Whether it submits."""
        commands = () if call.is_summary else commands_in(self.agent, call.reply)
        if isinstance(commands, FormatError):
            self.counts["format errors"] += 1
            return False
        for index, command in enumerate(commands):
            output = "".join(self.rng.choices((*WORDS, *FORGED), k=self.rng.randrange(120)))
            lines = output.replace(" ", "\n").encode()
            done = Execution(call.number, index, command.command, 0, lines, False, False, 0.1)
            self.executions.append(done)
            self.counts["commands"] += 1
            if self.agent.is_done(done):
                return True
        return False

    def _says(self, bound: int) -> tuple[list[int], list[int]]:
        """A reply, and before which of its tokens new weights arrive."""
        rng, ends = self.rng, self.text.stop_token_ids
        encode: Any = self.tokenizer.encode
        if rng.random() < 0.1:
            ids = [rng.randrange(len(self.tokenizer)) for _ in range(rng.randrange(1, 20))]
        else:
            ids = encode(
                self._reply(), add_special_tokens=False, split_special_tokens=rng.random() < 0.3
            )
        ids = [i for i in ids if i not in ends]
        made = ids if ids and rng.random() < 0.1 else [*ids, rng.choice(ends)]
        updates = [rng.randrange(len(made)) for _ in range(rng.choice((0, 0, 1, 2)))]
        return made, updates

    def _reply(self) -> str:
        rng = self.rng
        command = f"cat {rng.choice(('calc.py', 'a b', '<|im_end|>'))} # {rng.randrange(99)}"
        if rng.random() < 0.15:
            return "".join(rng.choices((*WORDS, *FORGED), k=rng.randrange(12)))
        thought = "".join(rng.choices(WORDS, k=rng.randrange(6)))
        if rng.random() < 0.2:
            thought = f"<think>\n{thought}</think>\n\n{thought}"
        if self.config.kind == "tools":
            calls = [
                json.dumps({"name": "bash", "arguments": {"command": command}}, indent=indent)
                for indent in rng.choices((None, 1), k=rng.randrange(1, 3))
            ]
            return thought + "".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
        if self.config.kind == "react":
            return f"Thought: {thought}\nAction: bash\nAction Input: {command}"
        return f"{thought}\n\n```bash\n{command}\n```"


def _cut(call: Call, length: int) -> PartialCall:
    spans = [
        VersionSpan(span.version, span.start, min(span.end, length))
        for span in call.spans
        if span.start < length
    ]
    return PartialCall(
        tuple(call.completion_ids[:length]), tuple(call.logprobs[:length]), tuple(spans), 0.1
    )
