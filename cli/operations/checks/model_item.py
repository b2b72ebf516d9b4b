"""Whether a campaign can be started with its `policy.model`: an item of its checklist.

Reads headers, sizes and the tokenizer, so a model of any size is looked at in a second. Used by
`cli.operations.checks.checklist`, and by supervised runs.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bundled.forms import CannotBeTaught, speech_of, taught_agent
from cli.operations.checks.checklist_item import Item, State
from infra.policy.model.model_files import check_model_directory, read_facts
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.model.weight_files import check_same_weights
from mainspring.artifacts import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.config.section import BUNDLED
from mainspring.config.training.parallel import FSDP, ParallelConfig
from mainspring.errors import ConfigError, ModelError
from mainspring.ids import campaign_id
from mainspring.planning.engine_facts import folder_use
from mainspring.planning.model_shape import read_shape
from mainspring.planning.rank_kinds import check_divides

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def model_item(config: CampaignConfig) -> Item:
    model = config.policy.model
    if model == BUNDLED:
        if any(_variables(config)):
            text = "the bundled model's chat template has no variables"
            return Item("model", State.MISSING, text, "leave chat_template_kwargs out")
        try:
            speech_of(taught_agent(config.agent))
        except CannotBeTaught as error:
            return Item("model", State.MISSING, error.message, error.remedy)
        except ConfigError:
            pass  # the agent cannot be made: an item of its own tells why
        return Item("model", State.OK, "bundled, made by the campaign")
    directory = Path(model)
    if not directory.is_dir() and not directory.is_absolute() and _HUB_NAME.fullmatch(model):
        return Item(
            "model",
            State.MISSING,
            f"policy.model = {model!r} is a name of the Hugging Face hub, not a folder",
            f"download it (hf download {model} --local-dir models/{directory.name}) and name the "
            "folder in policy.model",
        )
    try:
        use = folder_use(config.trainer)
        check_model_directory(directory, use)
        check_divides(read_shape(directory, use), config.trainer)
        check_adapted(directory, config.trainer)
        _check_chat(directory, config)
    except ModelError as error:
        return Item("model", State.MISSING, error.message, error.remedy)
    own = read_facts(directory).max_context
    if own is not None and config.policy.max_context > own:
        return Item(
            "model",
            State.MISSING,
            f"policy.max_context = {config.policy.max_context}, the model {model} was made for "
            f"{own} tokens",
            f"set policy.max_context to {own} or less",
        )
    return Item("model", State.OK, f"{model} ({model_bytes(directory) / 1e9:.1f} GB)")


def as_before(item: Item, config: CampaignConfig, home: Path) -> Item:
    """`item`, of the model; unless a campaign that is resumed began with one of other shapes: its
    engines would start with this one and refuse every version."""
    first = layout.policy(home, campaign_id(config.name), 0) / layout.HF_DIRECTORY
    if item.state is not State.OK or config.policy.model == BUNDLED or not first.is_dir():
        return item
    try:
        check_same_weights(Path(config.policy.model), first, more_allowed=True)
    except ModelError as error:
        text = f"{error.message}; campaign {config.name} began with that one"
        fix = "put the model back that the campaign began with, or give the new campaign another "
        return Item("model", State.MISSING, text, fix + "name")
    try:
        _check_chat(first, config)
    except ModelError as error:
        text = f"{error.message}; it is the copy that campaign {config.name} began with"
        fix = "give the campaign another name: nothing could be played with this copy"
        return Item("model", State.MISSING, text, fix)
    return item


def check_adapted(directory: Path, parallel: ParallelConfig) -> None:
    """Raises ModelError where the model lacks the matrices that [trainer.lora] is to adapt.

    The models of Megatron-core have them; for the engine `fsdp` the modules tell, built without
    memory. Without torch, as where runs are started for other machines, the ranks tell it in the
    same words, before they read weights."""
    if parallel.engine_name != FSDP or not parallel.lora.rank or find_spec("torch") is None:
        return
    from trainer.engines.fsdp.adapters import check_targets  # seconds, which others are spared

    check_targets(directory, parallel.lora)


def _check_chat(directory: Path, config: CampaignConfig) -> None:
    """Raises ModelError unless the tokenizer and its template make the prompts of the agent, as far
    as they are known: an agent of one's own or a program may ask for nothing but turns."""
    tokenizer = ChatTokenizer(directory)
    for variables in _variables(config):
        tokenizer = tokenizer.under(variables)
        if any(agent.kind in ("bash", BUNDLED) for agent in config.agent_sections.values()):
            tokenizer.prompt_ids("system", "task")
        tokenizer.next_prompt_ids("output", closed=True)


def _variables(config: CampaignConfig) -> list[dict[str, Any]]:
    """Variables of the chat template, in training and in each evaluation that has others."""
    ours, evaluation = config.policy.sampling, config.evaluation
    splits = [evaluation.sampling_of(split, ours).variables for split in evaluation.sampling]
    return [ours.variables, *(variables for variables in splits if variables != ours.variables)]


def model_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))
