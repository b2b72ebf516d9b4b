"""Whether a campaign's ranks fit the memory here: an item of the checklist of `mainspring train`.

Invariant: a plan is within 10 % of what was measured, so it refuses what lacks more than that, and
warns of what lacks less.
"""

import os
from pathlib import Path

from cli.operations.checks.checklist_item import Item, State
from cli.operations.machine.gpus_here import GpusHere
from mainspring.config.campaign import CampaignConfig
from mainspring.config.section import BUNDLED
from mainspring.config.training.parallel import Device
from mainspring.planning.assumptions import Given
from mainspring.planning.engine_facts import folder_use
from mainspring.planning.model_shape import read_shape
from mainspring.planning.plan import plan_of

EXACTNESS = 0.1
"""Possible error of a plan, as a share."""


def memory_here() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_item(config: CampaignConfig, seen: GpusHere | None, host_bytes: int) -> Item | None:
    """`seen`: GPUs of this machine; `host_bytes`: its own memory. None where nothing can be told:
    no GPU here for ranks on GPUs, or the bundled model. Raises ModelError."""
    trainer, model = config.trainer, config.policy.model
    on_gpus = trainer.device is Device.CUDA
    if model == BUNDLED or (on_gpus and seen is None):
        return None
    given = Given() if seen is None else Given(gpu_name=seen.name)
    plan = plan_of(config, read_shape(Path(model), folder_use(trainer)), given)
    if on_gpus and seen is not None:
        needed, there = plan.largest.peak.num_bytes, seen.memory_bytes
        who, where = "a rank needs", seen.name
    else:
        needed, there = plan.host.peak_bytes, host_bytes
        who, where = "the ranks need", "this machine"
    text = f"{who} {needed / 1e9:.1f} GB as planned, {where} has {there / 1e9:.1f} GB"
    if needed <= there:
        return Item("memory", State.OK, text)
    fix = "`mainspring campaign plan FILE` names changes that fit"
    if not on_gpus:
        fix = "lower trainer.micro_batch_tokens or policy.max_context"
    is_sure = needed > (1 + EXACTNESS) * there
    return Item("memory", State.MISSING if is_sure else State.WARNING, text, fix)
