"""A line of the checklist: an engine of a judge, which answers, is started, or is missing."""

from urllib.parse import urlsplit

from cli.operations.checks.checklist_item import Item, State
from cli.operations.machine import local_engines
from cli.operations.machine.local_engines import EngineKind, Hardware
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import ModelError


async def judge_engine_item(
    config: CampaignConfig, name: str, url: str, hardware: Hardware
) -> Item:
    """`name`: of the judge."""
    what, model = f"engine {url} of judge {name}", config.judges[name].model
    if await local_engines.answering([url]):
        return Item(what, State.OK, "answers")
    by_hand = f"mainspring serve --model {model} --port {urlsplit(url).port or 80}"
    if not local_engines.is_here(url):
        return Item(what, State.MISSING, "does not answer", f"start it: {by_hand}", True)
    try:
        judge = local_engines.as_policy(config, name)
    except ModelError as error:
        return Item(what, State.MISSING, error.message, error.remedy)
    kind = local_engines.kind_for(judge, hardware)
    text = "SGLang on this machine's GPUs" if kind is EngineKind.SGLANG else "the CPU engine"
    return Item(what, State.STARTS, text)
