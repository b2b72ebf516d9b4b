"""A campaign's plan: memory, demand and time together, and whether it fits GPUs of a size.

Pure; imported by `mainspring campaign plan` and its screen.
"""

from dataclasses import dataclass

from mainspring.config.campaign import CampaignConfig
from mainspring.planning.activations import BatchTokens
from mainspring.planning.assumptions import Assumptions, Given, assumptions_of
from mainspring.planning.demand import Demand, demand_of
from mainspring.planning.host_memory import HostMemory, host_memory
from mainspring.planning.memory import RankMemory, largest_micro_batch, memory_of_ranks
from mainspring.planning.model_shape import ModelShape
from mainspring.planning.step_time import StepTime, step_time


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    config: CampaignConfig
    shape: ModelShape
    assumed: Assumptions
    micro_batch: BatchTokens
    """The largest one."""
    num_micro_batches: int
    """Micro-batches of one data-parallel copy in a step, expected."""
    ranks: tuple[RankMemory, ...]
    host: HostMemory
    demand: Demand
    time: StepTime

    @property
    def largest(self) -> RankMemory:
        return max(self.ranks, key=lambda rank: rank.peak.num_bytes)

    def lacks_bytes(self, gpu_bytes: int) -> int:
        """Bytes that the largest rank needs beyond a GPU's memory; 0 where it fits."""
        return max(0, self.largest.peak.num_bytes - gpu_bytes)


def plan_of(config: CampaignConfig, shape: ModelShape, given: Given) -> MemoryPlan:
    """Raises ModelError for sizes that divide nothing."""
    assumed = assumptions_of(config, shape, given)
    demand = demand_of(config, shape, assumed)
    largest = largest_micro_batch(config, assumed.action_share)
    num_micro_batches = -(-demand.tokens_per_step // (largest.num * config.trainer.data_parallel))
    ranks = memory_of_ranks(config, shape, largest, num_micro_batches)
    return MemoryPlan(
        config=config,
        shape=shape,
        assumed=assumed,
        micro_batch=largest,
        num_micro_batches=num_micro_batches,
        ranks=ranks,
        host=host_memory(shape, config.trainer, ranks),
        demand=demand,
        time=step_time(config, shape, demand, assumed, num_micro_batches),
    )
