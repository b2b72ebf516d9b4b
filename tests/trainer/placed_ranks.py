"""Ranks on a Ray cluster of several hosts, in a process of its own: a process has one Ray.

    python -m tests.trainer.placed_ranks MODEL_DIRECTORY

Prints JSON: the refusal while no host is large enough, on which hosts two tensor-parallel groups
stood, and what a lost host led to. The hosts are raylets of this machine.
"""

import json
import sys
from pathlib import Path

from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from mainspring.config.campaign import CampaignConfig
from mainspring.training.training_faults import DeviceMissing, TrainerLost
from trainer.process.driver import TrainerDriver


def config(placement_timeout_s: float) -> CampaignConfig:
    trainer = {
        "device": "cpu",
        "tensor_parallel": 2,
        "placement_timeout_s": placement_timeout_s,
    }
    policy = {"model": "/models/any"}
    return CampaignConfig.model_validate({"name": "placed", "policy": policy, "trainer": trainer})


def hosts_of(driver: TrainerDriver) -> list[str]:
    placement = driver._processes._placement
    assert placement is not None
    table = placement_group_table(placement._group)
    return sorted(table["bundles_to_node_id"].values())


def main(model_dir: Path) -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20, "num_gpus": 0},
    )
    driver = TrainerDriver(address=cluster.address)
    try:
        try:
            driver.start(config(3.0), model_dir)
            refusal = ""
        except DeviceMissing as error:
            refusal = error.message
        large = cluster.add_node(num_cpus=2, num_gpus=0, object_store_memory=80 << 20)
        driver.start(config(60.0), model_dir)
        before = hosts_of(driver)
        cluster.remove_node(large, allow_graceful=False)
        try:
            driver.logprobs([])
            lost = ""
        except TrainerLost as error:
            lost = type(error).__name__
        cluster.add_node(num_cpus=2, num_gpus=0, object_store_memory=80 << 20)
        driver.start(config(60.0), model_dir)
        after = hosts_of(driver)
        print(json.dumps({"refusal": refusal, "lost": lost, "before": before, "after": after}))
    finally:
        driver.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
