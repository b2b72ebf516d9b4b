"""A line of the checklist: an engine of a judge, which answers, is started, or is missing."""

from pathlib import Path
from urllib.parse import urlsplit

from cli.operations.checks.checklist_item import Item, State
from cli.operations.machine import local_engines
from cli.operations.machine.local_engines import EngineKind, Hardware
from infra.policy.model.model_files import read_facts
from mainspring.config.agents.judges import JudgeConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import ModelError


async def judge_engine_item(
    config: CampaignConfig, name: str, url: str, hardware: Hardware
) -> Item:
    """`name`: of the judge."""
    what, model = f"engine {url} of judge {name}", config.judges[name].model
    if too_long := _no_room(name, config.judges[name]):
        return Item(what, State.MISSING, *too_long)
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


def _no_room(name: str, judge: JudgeConfig) -> tuple[str, str] | None:
    """Why no prompt leaves room for a vote, and what to do; None: it is not known to be so."""
    try:
        longest = read_facts(Path(judge.model)).max_context
    except ModelError:  # told where the engine is started
        return None
    if longest is None or judge.max_new_tokens < longest:
        return None
    return (
        f"judges.{name}.max_new_tokens = {judge.max_new_tokens}, and its model was made for "
        f"{longest} tokens: no prompt has room",
        f"set judges.{name}.max_new_tokens to {longest // 4} or less: prompts need the rest",
    )
