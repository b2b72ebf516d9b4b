"""Sections [agent] that the bundled model is taught, and rollouts as they are served."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedTokenizerFast

from bundled.generator import TaskInstance
from bundled.model import make_tokenizer
from bundled.served_text import ServedText
from bundled.trajectories import Writer
from infra.policy.model.request_text import RequestText
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import ANY, ReplyRequest
from infra.policy.replies.token_policy import TokenPolicy
from mainspring.agents.asking import NextRequest, next_request
from mainspring.agents.choice import AGENTS
from mainspring.agents.contexts.rewriting import rewrite, with_messages
from mainspring.agents.protocol import commands_in
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.agents.context import FAIL
from mainspring.config.policy import PolicyConfig
from mainspring.ids import RolloutId
from mainspring.programs.matching import StoredCall
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.request import ChatMessage
from mainspring.trajectories.turns import Call, Execution
from tests.infra.policy.scripted_engines import ScriptedEngines, no_weights

SHORT = {"system": "Fix the bug.", "task": "{{ issue }}"}
TOOLS = {"kind": "tools", "tools": ["bash", "submit"], "prompts": SHORT}
REACT = {"kind": "react", "tools": ["bash", "submit"], "prompts": SHORT}
SUMMARISE = {"kind": "summarise", "summary_prompt": "Sum up.", "summary_tokens": 24}
TAUGHT: dict[str, dict[str, Any]] = {
    "bundled": {"kind": "bundled"},
    "bash": {"kind": "bash"},
    "tools": TOOLS,
    "react": REACT,
    "react with a memory": {
        **REACT,
        "react": {"memory": 1, "summary": "Notes:", "thought": "Why:", "action": "Do:"},
    },
    "head_tail": {"kind": "bundled", "context": {"kind": "head_tail"}},
    "summarise": {"kind": "bundled", "context": SUMMARISE},
    "tools, head_tail": {**TOOLS, "context": {"kind": "head_tail"}},
    "tools, summarise": {**TOOLS, "context": SUMMARISE},
}


def limits(config: AgentConfig) -> PolicyConfig:
    """So few tokens that a context is reached, where there is one."""
    max_context = 512 if config.context.kind == FAIL else 160
    return PolicyConfig(max_context=max_context, max_new_tokens=40)


@dataclass(slots=True)
class Taught:
    config: AgentConfig
    tokenizer: PreTrainedTokenizerFast
    writer: Writer


def taught(name: str) -> Taught:
    config = AgentConfig.model_validate(TAUGHT[name])
    tokenizer = make_tokenizer(config)
    return Taught(config, tokenizer, Writer(config, limits(config), ServedText(tokenizer)))


def served(
    config: AgentConfig,
    tokenizer: PreTrainedTokenizerFast,
    instance: TaskInstance,
    written: Sequence[Call],
    outputs: Sequence[str],
) -> list[Call]:
    """The rollout whose engine says the replies of `written` and whose commands print `outputs`, as
    the activities of replies play it."""
    return asyncio.run(_served(config, tokenizer, instance, written, outputs))


async def _served(
    config: AgentConfig,
    tokenizer: PreTrainedTokenizerFast,
    instance: TaskInstance,
    written: Sequence[Call],
    outputs: Sequence[str],
) -> list[Call]:
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        text = RequestText(ChatTokenizer(Path(folder)), plain=True)
    replies = iter([list(call.completion_ids) for call in written])
    engines = ScriptedEngines(lambda bound: (next(replies), []))
    parser = parser_of(config.tool_parser)
    bounds = limits(config)
    policy = TokenPolicy(bounds, engines, text, parser, no_weights)  # type: ignore[arg-type]
    agent = AGENTS.make(config.kind, config)
    calls, executions = list[Call](), list[Execution]()
    newest: NextRequest | None = None
    for number in range(len(written)):
        asked = next_request(agent, instance.task, Record(calls, executions), newest)

        async def known(asked: NextRequest = asked) -> Sequence[StoredCall]:
            return asked.stored

        async def none() -> Sequence[StoredCall]:
            return ()

        async def count(messages: Sequence[ChatMessage], asked: NextRequest = asked) -> int:
            return await policy.count(with_messages(asked.request, messages), none)

        async def count_asked(asked: NextRequest = asked) -> int:
            return await policy.count(asked.request, known)

        budget = bounds.max_context - bounds.max_new_tokens
        made = await rewrite(config.context, asked, budget, count_asked, count)
        whole = asked if made is None else asked.rewritten(made.request)
        newest = asked if made is not None and made.is_summary else whole
        ask = ReplyRequest(
            number=number,
            request=whole.request,
            stored=whole.stored,
            rollout=RolloutId("r"),
            request_id=str(number),
            temperature=1.0,
            versions=ANY,
            digests=whole.digests,
            apart=bool(whole.request.tools),
        )
        reply = await policy.complete(ask)
        call = replace(
            reply.call,
            parts=reply.reply if whole.request.tools else None,
            rewritten=None if made is None else made.request,
            is_summary=made is not None and made.is_summary,
        )
        calls.append(call)
        if not call.is_summary:
            commands = commands_in(agent, call.reply)
            assert isinstance(commands, tuple), json.dumps(call.text)
            (command,) = commands
            output = outputs[len(executions)].encode()
            executions.append(Execution(number, 0, command.command, 0, output, False, False, 0.0))
    return calls
