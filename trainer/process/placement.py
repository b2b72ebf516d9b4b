"""Which hosts of a Ray cluster the ranks run on.

Ranks that share a layer (tensor parallel) exchange tensors many times in each of them and stand on
one host: a bundle of Ray's placement group is never divided. Everything is reserved before the
first rank is made, so that two campaigns on one cluster do not each hold half of what they need.
Imported by `trainer.process.driver`.
"""

from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mainspring.config.training.parallel import Device, ParallelConfig
from mainspring.training.training_faults import DeviceMissing


class Placement:
    def __init__(self, parallel: ParallelConfig, campaign: str, address: str) -> None:
        """Reserve the ranks' places, and wait for hosts that join. Raises DeviceMissing after
        `placement_timeout_s`."""
        self._tensor_parallel = parallel.tensor_parallel
        resources = {"CPU": float(parallel.threads_per_rank)}
        if parallel.device is Device.CUDA:
            resources |= {"GPU": 1.0}
        bundle = {name: count * parallel.tensor_parallel for name, count in resources.items()}
        num_bundles = parallel.world_size // parallel.tensor_parallel
        self._group: PlacementGroup = placement_group([bundle] * num_bundles, strategy="PACK")
        try:
            ray.get(self._group.ready(), timeout=parallel.placement_timeout_s)
        except GetTimeoutError:
            self.release()
            raise _missing(parallel, campaign, address, bundle, num_bundles) from None

    def options(self, rank: int) -> dict[str, Any]:
        """Resources of the actor of a rank."""
        return {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=rank // self._tensor_parallel
            )
        }

    def release(self) -> None:
        remove_placement_group(self._group)


def _missing(
    parallel: ParallelConfig,
    campaign: str,
    address: str,
    bundle: dict[str, float],
    num_bundles: int,
) -> DeviceMissing:
    def counted(has: dict[str, float]) -> str:
        counts = {name: int(has.get(name, 0)) for name in sorted(bundle)}
        parts = [f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items()]
        return " and ".join(parts)

    hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    have = ", ".join(counted(host) for host in hosts)
    needs = f"its ranks need {counted(bundle)} on one host"
    if num_bundles > 1:
        needs = f"its {num_bundles} groups of ranks need {counted(bundle)} each, on one host each"
    return DeviceMissing(
        f"campaign {campaign}: {needs}; the Ray cluster "
        f"at {address} has {len(hosts)} host{'s' if len(hosts) > 1 else ''} with {have}, and they "
        f"were not free within {parallel.placement_timeout_s:.0f} s (trainer.placement_timeout_s)",
        remedy="add hosts to the cluster, wait until another campaign ends, or start a campaign "
        "with smaller parallel sizes",
    )
