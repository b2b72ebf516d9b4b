"""Whether the first prompts of tasks leave room for a reply: items of a campaign's checklist.

Invariants: nothing is asked of an engine; text that is certainly short enough is not turned into
tokens, which would load transformers. What has a mistake of its own (the model, the agent) is told
by its own item. Used by `cli.operations.checks.task_items`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.operations.checks.checklist_item import Item, State
from infra.policy.model.request_text import RequestText
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import MIN_REPLY_TOKENS, RequestRefused
from mainspring.agents.choice import agent_config, agent_for
from mainspring.agents.record import Record
from mainspring.config.campaign import CampaignConfig
from mainspring.config.section import BUNDLED
from mainspring.errors import ConfigError, ModelError, UsageError
from mainspring.ids import TaskId
from mainspring.programs.profiles.choice import is_program
from mainspring.programs.request import ModelRequest
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SweTask

MAX_LOOKED = 64
"""Tasks of each set that are looked at, spread over it."""
TEMPLATE_TOKENS = 64
"""More than a chat template adds to a message and to the whole."""


def spread(ids: Sequence[TaskId]) -> Sequence[TaskId]:
    """At most MAX_LOOKED of them, from the first to the last."""
    if len(ids) <= MAX_LOOKED:
        return ids
    return [ids[number * len(ids) // MAX_LOOKED] for number in range(MAX_LOOKED)]


def prompt_items(config: CampaignConfig, what: str, tasks: Sequence[AnyTask]) -> list[Item]:
    """`what`: the set that the tasks are of, in words. Empty: each prompt leaves room, or nothing
    is known of it, as of a program's."""
    limit = config.policy.max_context
    if config.policy.model == BUNDLED:  # its tokenizer has one token for each prompt of its agents
        return []
    try:
        asked = _requests(config, tasks)
        if all(_most_tokens(request) <= limit - MIN_REPLY_TOKENS for request in asked.values()):
            return []
        chat = ChatTokenizer(Path(config.policy.model), variables=config.policy.sampling.variables)
        text = RequestText(chat, plain=True)
        tokens = {
            task: len(text.first_ids(request.messages, request.tools))
            for task, request in asked.items()
        }
    except (ConfigError, ModelError, UsageError, RequestRefused):
        return []
    full = {task: number for task, number in tokens.items() if number > limit - MIN_REPLY_TOKENS}
    if not full:
        return []
    longest = max(full, key=lambda task: full[task])
    found = f"the first prompt of task {longest} has {full[longest]} tokens"
    wanted = full[longest] + config.policy.max_new_tokens
    fix = f"raise policy.max_context to {wanted} (the model must have it)"
    if len(full) == len(tokens):
        found += f", and policy.max_context is {limit}: no prompt of {what} leaves room for a reply"
        return [Item("context", State.MISSING, found, f"{fix}, or shorten [agent.prompts]")]
    found += (
        f", policy.max_context is {limit}: {len(full)} of {len(tokens)} of {what} that were looked "
        "at leave no room for a reply, and their rollouts are masked"
    )
    return [Item("context", State.WARNING, found, f"{fix}, or leave these tasks out")]


def _requests(config: CampaignConfig, tasks: Sequence[AnyTask]) -> Mapping[TaskId, ModelRequest]:
    """First ones. An environment of another kind may begin with more than its task tells."""
    return {
        task.id: agent_for(config, task).request(task, Record((), ()))
        for task in tasks
        if isinstance(task, SweTask) and not is_program(agent_config(config, task))
    }


def _most_tokens(request: ModelRequest) -> int:
    """No tokenizer makes more tokens than there are bytes."""
    texts = [message.text for message in request.messages] + [str(tool) for tool in request.tools]
    return sum(len(text.encode(errors="replace")) + TEMPLATE_TOKENS for text in texts)
