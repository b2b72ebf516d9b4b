"""The example backend isolates a rollout, and the node's next process finds it by its path."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from cluster import Cluster

from cli.operations.runs.campaign_launch import create
from infra.db.cache import FactCache
from infra.db.nodes import sandboxes
from infra.db.runs import campaigns
from infra.environments.hosted import Environments
from infra.sandbox.backends import BACKENDS, Backends
from infra.sandbox.protocol import BackendUnavailable
from mainspring.config.files.reading import load_campaign
from mainspring.config.sandbox import SandboxConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import StopReason
from node.held_sandboxes import HeldSandboxes
from node.reaper import Reaper

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-backend"
NAME = "journal_backend:JournalBackend"
SAY = (
    "```bash\nsed -i 's/a - b/a + b/' calc.py\n```",
    "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```",
)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    sys.modules.pop("journal_backend", None)


def successor(cluster: Cluster) -> Backends:
    """What another process of the node begins with, at the same place: none of your own."""
    place = cluster.backends.with_backends({})
    place._backends.pop(NAME, None)
    return place


@pytest.mark.usefixtures("importable")
async def test_the_example_backend_isolates_a_rollout(cluster: Cluster) -> None:
    configured = load_campaign(EXAMPLE / "campaign.toml").sandbox
    BACKENDS.check(configured.backend)
    cluster.policy.say = lambda rollout, turn: SAY[turn]
    rollout, result = await cluster.play(sandbox=configured)
    assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 1.0)
    leases = await sandboxes.rollout_leases(cluster.db, rollout)
    assert [lease.backend for lease in leases] == [NAME, NAME]  # the agent's and the grader's
    backend = await successor(cluster).choose(NAME, None)
    lines = backend.journal.read_text().splitlines()  # type: ignore[attr-defined]
    mine = [entry for line in lines if (entry := json.loads(line))["rollout"] == rollout]
    assert [entry["sandbox"] for entry in mine] == [lease.sandbox for lease in leases]


@pytest.mark.usefixtures("importable")
async def test_the_next_process_takes_its_sandboxes_over_and_removes_them(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: SAY[turn]
    cluster.policy.gate = asyncio.Event()
    [(node, ours)] = cluster.nodes.items()
    campaign, group, [rollout] = await cluster.make_rollouts(sandbox=SandboxConfig(backend=NAME))
    handle = await cluster.start(rollout, campaign, group)
    try:
        while not (held := [each for each in ours.held.ids() if each.startswith(_id(rollout))]):
            await asyncio.sleep(0.05)
        backends = successor(cluster)
        assert NAME not in backends
        next_held = HeldSandboxes(cluster.db, FactCache(cluster.db), node, Environments(backends))
        assert await next_held.adopt() >= 1
        assert held[0] in next_held
        assert (await next_held.get(held[0]).step("t", "cat calc.py", 10.0)).returncode == 0
        left = await backends.choose(NAME, None)
        assert held[0] in await left.list_open()
    finally:
        await handle.terminate()
        cluster.policy.gate = None
    # Nothing closes it any more: as if its rollout had ended while the node was down.
    await sandboxes.close_lease(cluster.db, held[0], node)
    third = successor(cluster)
    third_held = HeldSandboxes(cluster.db, FactCache(cluster.db), node, Environments(third))
    await third_held.adopt()
    assert await Reaper(cluster.db, node, third, third_held).reap() >= 1
    assert held[0] not in await left.list_open()


async def test_a_node_that_cannot_import_it_names_it(cluster: Cluster) -> None:
    with pytest.raises(BackendUnavailable, match=r"'no_backend:Here' cannot run here: .*imported"):
        await successor(cluster).choose("no_backend:Here", None)


@pytest.mark.parametrize("name", ["podman", "no_backend:Here"])
async def test_an_unknown_backend_is_refused_before_anything_is_stored(
    cluster: Cluster, name: str
) -> None:
    file = load_campaign(EXAMPLE / "campaign.toml")
    config = file.model_copy(
        update={"name": "refused-backend", "sandbox": SandboxConfig(backend=name)}
    )
    with pytest.raises(UsageError, match=f"backend .*'{name}'"):
        await create(cluster.db, config)
    assert await campaigns.find(cluster.db, CampaignId("refused-backend")) is None


def _id(rollout: str) -> str:
    return rollout.replace("/", ".")
