"""Items of the checklist about the agents that play: clients' bundles here, room for them, and what
rows ask for.

Invariant: each section whose agent may play is looked at; what is wrong with a section itself is
told by the item of its agent. Used by `cli.operations.checks.checklist`.
"""

from collections.abc import Sequence

from cli.operations.checks.checklist_item import Item, State
from cli.operations.checks.first_prompts import prompt_items, spread
from cli.operations.checks.task_checks import check_asked
from infra.bundles.store import BundleMissing, mounts_for
from infra.db.database import Database
from infra.db.tasks import tasks
from mainspring.agents.choice import check_contexts, narrow_contexts
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import UsageError
from mainspring.ids import TaskId


def bundle_items(config: CampaignConfig) -> list[Item]:
    """The bundle of each client; a name that is unknown is told elsewhere."""
    items: dict[Item, None] = {}  # sections may have the same client
    for agent in config.agent_sections.values():
        try:
            mounts = mounts_for(agent)
        except BundleMissing as missing:
            items[Item("client", State.MISSING, missing.message, missing.remedy)] = None
        except UsageError:
            continue
        else:
            items |= {Item("client", State.OK, str(folder)): None for folder in mounts.values()}
    return list(items)


def context_items(config: CampaignConfig) -> list[Item]:
    """Whether the context is too small for a client; nothing of agents that are none."""
    try:
        narrow = narrow_contexts(config)
    except UsageError:  # of its options: told with the agent
        return []
    try:
        check_contexts(config)
    except UsageError as error:
        return [Item("context", State.MISSING, error.message, error.remedy)]
    return [Item("context", State.WARNING, *each) for each in narrow]


async def asked_items(
    db: Database,
    config: CampaignConfig,
    what: str,
    used: Sequence[TaskId],
    by: str | None = None,
) -> list[Item]:
    """Whether each agent that these tasks ask for can play them, and its first prompts fit. `what`:
    the set that they are of, in words; `by`: the agent of those that ask for none; None:
    [agent]."""
    try:
        played = await check_asked(db, config, used, by)
    except UsageError as error:
        return [Item("agent", State.MISSING, error.message, error.remedy)]
    looked = [task.asking_for(by) for task in await tasks.get_some(db, spread(used))]
    return prompt_items(played, what, looked)
