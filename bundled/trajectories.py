"""Warm-start rollouts: played by the campaign's own agent, with a blind guess inside.

Invariants: the edit is drawn uniformly from the plausible ones, so the warm start teaches the
protocol and not which edit is right; that is left to the reward. What is asked is what the agent
asks in a rollout, and what its context strategy asks in the place of that; tokens are those that
the engine would be given. Pure.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from bundled.bugs import Edit
from bundled.forms import SUBMIT, speech_of
from bundled.generator import TaskInstance
from bundled.served_text import ServedText, text_of
from mainspring.agents.asking import NextRequest, next_request
from mainspring.agents.contexts.protocol import History
from mainspring.agents.contexts.rewriting import Rewrite, rewrite, with_messages
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.agents.context import FAIL
from mainspring.config.policy import PolicyConfig
from mainspring.programs.matching import StoredCall, chain, continued_call
from mainspring.programs.request import ChatMessage, ModelRequest
from mainspring.trajectories.turns import Call, Execution, VersionSpan

CAT_THOUGHT = "I read {module}."
EDIT_THOUGHT = "I change {old} to {new}."
SUBMIT_THOUGHT = "I submit."


@dataclass(frozen=True, slots=True)
class WrittenStep:
    thought: str
    command: str
    output: str


def steps_of(instance: TaskInstance, edit: Edit) -> tuple[WrittenStep, ...]:
    """Read the module, try `edit`, submit."""
    module = instance.module
    thought = EDIT_THOUGHT.format(old=edit.old.strip(), new=edit.new.strip())
    return (
        WrittenStep(
            CAT_THOUGHT.format(module=module), f"cat {module}", instance.task.files[module]
        ),
        WrittenStep(thought, edit.sed_command(module), ""),
        WrittenStep(SUBMIT_THOUGHT, SUBMIT, ""),
    )


def told(steps: Sequence[WrittenStep]) -> str:
    """A summary of these steps."""
    return " ".join(step.thought for step in steps)


@dataclass(frozen=True, slots=True)
class Written:
    """A written rollout."""

    calls: list[Call]
    requests: list[ModelRequest]
    """Request that each call replies to."""

    @property
    def texts(self) -> list[str]:
        """Its messages, each once, with the roles before them."""
        said = [message for request in self.requests for message in request.messages]
        texts = [f"{message.role.value}\n{text_of(message)}" for message in said]
        return list(dict.fromkeys([*texts, f"assistant\n{self.calls[-1].text}"]))


class Writer:
    def __init__(
        self, agent: AgentConfig, policy: PolicyConfig | None = None, text: ServedText | None = None
    ) -> None:
        """Without `text` calls have no tokens, and no request is too long. Raises ConfigError for
        an agent that cannot be taught."""
        self._speech = speech_of(agent)
        self._context = agent.context
        self._policy = policy or PolicyConfig()
        self._text = text

    def draw(self, instance: TaskInstance, rng: random.Random) -> Written:
        """The rollout that tries one plausible edit."""
        return self.rollout(instance, rng.choice(instance.edits))

    def rollout(self, instance: TaskInstance, edit: Edit) -> Written:
        """The rollout that tries `edit`."""
        steps = steps_of(instance, edit)
        calls, executions, requests = list[Call](), list[Execution](), list[ModelRequest]()
        newest: NextRequest | None = None
        while (num_done := len(executions)) < len(steps):
            record = Record(calls, executions)
            asked = next_request(self._speech.agent, instance.task, record, newest)
            made = self._rewritten(asked)
            whole = asked if made is None else asked.rewritten(made.request)
            requests.append(whole.request)
            if made is not None and made.is_summary:
                newest = asked  # it is still to be asked
                num_left = _num_turns(asked.request) - _num_turns(made.request)
                calls.append(self._call(whole, told(steps[: num_done - num_left]), made))
                continue
            newest, step = whole, steps[num_done]
            text = self._speech.form.reply(step.thought, step.command, told(steps[: num_done + 1]))
            calls.append(self._call(whole, text, made))
            output = step.output.encode()
            executions.append(
                Execution(calls[-1].number, 0, step.command, 0, output, False, False, 0.0)
            )
        return Written(calls, requests)

    def _rewritten(self, asked: NextRequest) -> Rewrite | None:
        """As `activities.replies` does it before a turn."""
        if self._context.kind == FAIL or self._text is None:
            return None

        async def count(messages: Sequence[ChatMessage]) -> int:
            return self._num_tokens(with_messages(asked.request, messages), ())

        async def count_asked() -> int:
            return self._num_tokens(asked.request, asked.stored)

        budget = self._policy.max_context - self._policy.max_new_tokens
        return asyncio.run(rewrite(self._context, asked, budget, count_asked, count))

    def _call(self, asked: NextRequest, text: str, made: Rewrite | None) -> Call:
        parent, prompt_ids = self._prompt(asked.request, asked.digests, asked.stored)
        completion_ids = self._text.reply_ids(text) if self._text else []
        return Call(
            number=len(asked.stored),
            parent=None if parent is None else parent.number,
            prompt_start=0 if parent is None else parent.end,
            prompt_ids=tuple(prompt_ids),
            completion_ids=tuple(completion_ids),
            logprobs=(0.0,) * len(completion_ids),
            spans=(VersionSpan(0, 0, len(completion_ids)),),
            text=text,
            finish_reason="stop",
            parts=self._speech.read(text) if asked.request.tools else None,
            rewritten=None if made is None else made.request,
            is_summary=made is not None and made.is_summary,
        )

    def _num_tokens(self, request: ModelRequest, stored: Sequence[StoredCall]) -> int:
        parent, new_ids = self._prompt(request, chain(request), stored)
        return (0 if parent is None else parent.end) + len(new_ids)

    def _prompt(
        self, request: ModelRequest, digests: Sequence[str], stored: Sequence[StoredCall]
    ) -> tuple[Call | None, list[int]]:
        """The call that a request continues, and its tokens after that."""
        found = continued_call(request, digests, stored, below=len(stored))
        parent = None if found is None else found[1]
        if self._text is None:
            return parent, []
        if found is None:
            return None, self._text.first_ids(request.messages, request.tools)
        return parent, self._text.next_ids(request.messages[found[0] + 1 :])


def _num_turns(request: ModelRequest) -> int:
    return len(History.of(request.messages).turns)
