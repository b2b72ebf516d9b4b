"""Texts that rollouts of an agent have in common, which its tokenizer has as tokens or words.

Invariant: they follow from the section [agent] alone. Of the agent "bundled" with the prompts that
are its own none is long. Imported by `bundled.model`.
"""

import random
import re

from transformers import PreTrainedTokenizerBase

from bundled.forms import speech_of
from bundled.generator import draw_instance
from bundled.served_text import ServedText
from mainspring.agents.contexts.choice import sums_up
from mainspring.agents.contexts.head_tail import marker
from mainspring.agents.contexts.summarise import OPENING
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.agents.context import ContextConfig

LONG = 60
"""Characters: a longer text of a prompt would cost more tokens than the rest of a rollout."""
_ISSUE = "issue-0f8c1d"
_MARKS = re.compile(rf"{_ISSUE}|<\|im_start\|>\w+\n|<\|im_end\|>\n?")


def prompt_texts(agent: AgentConfig, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Long texts around the issue in every first prompt, as the chat template writes them."""
    instance = draw_instance(random.Random(0), "train", "prompt")
    task = instance.task.model_copy(update={"issue": _ISSUE})
    asked = speech_of(agent).agent.request(task, Record((), ()))
    shown = ServedText(tokenizer).rendered(asked.messages, asked.tools)
    said = [message.text for message in asked.messages]
    return _long([piece for text in (shown, *said) for piece in _MARKS.split(text)])


def context_texts(context: ContextConfig) -> list[str]:
    """Texts that the context strategy adds."""
    if sums_up(context):
        return [context.summary_prompt, OPENING]
    return [marker(1).text] if context.kind == "head_tail" else []


def long_texts(agent: AgentConfig, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Texts that are a token each, the longest first."""
    texts = {*prompt_texts(agent, tokenizer), *_long(context_texts(agent.context))}
    return sorted(texts, key=lambda text: (-len(text), text))


def _long(texts: list[str]) -> list[str]:
    return [text for text in texts if len(text) > LONG]
