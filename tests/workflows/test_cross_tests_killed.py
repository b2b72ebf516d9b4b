"""A node that is killed while it runs cross tests: what is stored stays, the rest is run again."""

from collections import Counter
from pathlib import Path

from cluster import bwrap_or_skip, cluster_of
from cross_tested import evaluation, is_of_cross_test, put_task, saying

from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.runs import campaign_launch as launch
from infra.db.nodes import sandboxes
from infra.db.rollouts import cross_tests, rollouts
from infra.db.runs import campaigns
from mainspring.ids import RolloutId
from mainspring.status import CampaignStatus
from reports.export.evaluation import write_evaluation
from tests.edge_process import process
from tests.waiting import until

WAIT_S = 1.5
"""Duration of each test, so that one is under way when the node is killed."""
NODE = "cross-tests-killed"


async def test_a_killed_node_runs_only_what_is_not_stored(stack: StackInfo, tmp_path: Path) -> None:
    await bwrap_or_skip(tmp_path / "probe")
    logs = tmp_path / "logs"
    logs.mkdir()
    words = ("-m", "mainspring", "worker", "sandbox", "--home", str(stack.home), "--capacity", "4")
    own = {"MAINSPRING_NODE_ID": NODE, "MAINSPRING_NODE_MIN_FREE_MEMORY_MB": "0"}
    async with cluster_of(stack, {}) as cluster:
        cluster.policy.say = saying(WAIT_S)
        campaign = await launch.create(cluster.db, evaluation(await put_task(cluster.db)))

        async def stored() -> dict[tuple[RolloutId, str, bool], int | None]:
            played = await rollouts.list_rollouts(cluster.db, campaign=campaign)
            return {
                (each.id, result.test, result.without_patch): result.exit_code
                for each in played
                for result in await cross_tests.results(cluster.db, each.id, each.epoch)
            }

        async def leases() -> list[sandboxes.Lease]:
            played = await rollouts.list_rollouts(cluster.db, campaign=campaign)
            found = [await sandboxes.rollout_leases(cluster.db, each.id) for each in played]
            return [lease for of_one in found for lease in of_one if is_of_cross_test(lease)]

        async def one_is_stored() -> bool:
            return bool(await stored()) and any(each.closed_at is None for each in await leases())

        with process(logs, *words, **own) as node:
            handle = await launch.start(cluster.client, cluster.db, campaign)
            await until(one_is_stored)
            node.kill()
        before, first = await stored(), await leases()
        closed = {lease.sandbox for lease in first if lease.closed_at is not None}
        assert 1 <= len(before) < 8 and len(closed) < len(first)

        with process(logs, *words, **own):
            await handle.result()
        assert (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.FINISHED
        after, second = await stored(), await leases()
        assert len(after) == 8 and None not in after.values()
        assert before.items() <= after.items()
        # A sandbox's id names the pair of it after the attempt.
        pairs = Counter(
            (lease.rollout, lease.sandbox.rpartition(".")[2], ".base" in lease.sandbox)
            for lease in second
        )
        for rollout, test, without_patch in before:
            assert pairs[rollout, test[:8], without_patch] == 1
        assert sum(pairs.values()) > 8
        assert all(lease.closed_at for lease in second)
        summary = await write_evaluation(cluster.db, campaign, tmp_path / "out")
        assert [each["value"] for each in summary["chosen_at_n"]] == [0.0, 0.0, 1.0]
        assert summary["cross_tests"]["not_compared"] == 0
