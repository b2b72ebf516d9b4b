"""Whether a campaign's ranks fit the GPUs here: an item of the checklist of `mainspring train`.

Invariant: a plan is within 10 % of what was measured, so it refuses what lacks more than that, and
warns of what lacks less.
"""

from pathlib import Path

from cli.operations.checklist_item import Item, State
from cli.operations.gpus_here import GpusHere
from mainspring.config.campaign import CampaignConfig
from mainspring.config.parallel import Device
from mainspring.config.section import BUNDLED
from mainspring.planning.assumptions import Given
from mainspring.planning.model_shape import read_shape
from mainspring.planning.plan import plan_of

EXACTNESS = 0.1
"""Of a plan, as a share."""


def memory_item(config: CampaignConfig, seen: GpusHere | None) -> Item | None:
    """None where nothing can be told: ranks on a CPU, no GPU here, or the bundled model. Adapters
    need less than is planned, so they are only warned of. Raises ModelError."""
    trainer, model = config.trainer, config.policy.model
    if trainer.device is not Device.CUDA or seen is None or model == BUNDLED:
        return None
    plan = plan_of(config, read_shape(Path(model)), Given(gpu_name=seen.name))
    needed, there = plan.largest.peak.num_bytes, seen.memory_bytes
    found = f"a rank needs {needed / 1e9:.1f} GB as planned, {seen.name} has {there / 1e9:.1f} GB"
    if needed <= there:
        return Item("memory", State.OK, found)
    fix = "`mainspring campaign plan FILE` names changes that fit"
    is_sure = needed > (1 + EXACTNESS) * there and not trainer.lora.rank
    return Item("memory", State.MISSING if is_sure else State.WARNING, found, fix)
