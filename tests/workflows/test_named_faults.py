"""What stops a rollout says so by name: its task, its sandbox and the node it was on."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from scripted import SUBMIT, bash
from temporalio.testing import ActivityEnvironment

from activities.sandbox import SandboxActivities
from infra.db.cache import FactCache
from infra.db.rollouts import turns
from infra.sandbox.protocol import SandboxLost
from mainspring.ids import SandboxId
from mainspring.protocol.rollout import SandboxInput
from mainspring.status import StopReason, Verdict
from tests import image_registry
from tests.docker_image import base_image


async def check_fault(cluster: Cluster, kind: str, **task: str) -> None:
    rollout, result = await cluster.play(**task)
    row = await cluster.row(rollout)
    assert result.stop_reason is StopReason.INFRA_FAULT and row.reward is None
    assert row.fault is not None and "TaskInvalid" in row.fault and kind in row.fault, row.fault
    for name in (row.task, f"{rollout.replace('/', '.')}.e0.s0", *cluster.nodes):
        assert name in row.fault, row.fault


async def test_a_workdir_that_cannot_be(cluster: Cluster) -> None:
    await check_fault(cluster, "/proc/nowhere", workdir="/proc/nowhere")


async def test_a_sandbox_that_is_not_there(cluster: Cluster) -> None:
    _, _, [rollout] = await cluster.make_rollouts()
    [(name, node)] = cluster.nodes.items()
    sandboxes = SandboxActivities(
        cluster.db, FactCache(cluster.db), name, node.held, node.admission
    )
    ask = SandboxInput(rollout=rollout, epoch=0, sandbox=SandboxId("nobody"))
    for activity in (sandboxes.restore_sandbox, sandboxes.collect_patch):
        with pytest.raises(SandboxLost) as lost:
            await ActivityEnvironment().run(activity, ask)
        task = (await cluster.row(rollout)).task
        assert f"task {task}: sandbox nobody is not on node {name}" in lost.value.message


async def test_a_command_that_is_no_text_is_run_all_the_same(cluster: Cluster) -> None:
    said = [bash("printf '%s' 'caf\0\N{REPLACEMENT CHARACTER}' | wc -c; printf '\\377'"), SUBMIT]
    cluster.policy.say = lambda rollout, turn: said[turn]
    rollout, result = await cluster.play()
    assert result.stop_reason is StopReason.SUBMITTED
    assert (await cluster.row(rollout)).verdict is Verdict.NO_PATCH
    _, executions = await turns.history(cluster.db, rollout, 0)  # where NUL cannot be stored
    assert executions[0].output == b"9\n\xff"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """By what is wrong with them."""
    client = image_registry.docker_client()
    base = base_image()
    without_git, without_bash = image_registry.new_name(), image_registry.new_name()
    recipe = f"FROM {base}\nRUN rm -f /usr/bin/git && mkdir /testbed\n".encode()
    client.images.build(fileobj=io.BytesIO(recipe), tag=without_git, network_mode="none", rm=True)
    image_registry.make_image(client, f"{without_bash}:1")
    folder: Path = tmp_path_factory.mktemp("registry")
    with (
        image_registry.running_registry(folder) as registry,
        image_registry.running_front(registry) as front,
    ):
        name = image_registry.new_name()
        yield {
            "does not exist": f"{front.address}/{name}:1",
            "is refused": f"{front.address}/denied/{name}:1",
            "not made for": f"{front.address}/alien/{name}:1",
            "cannot run": f"{without_bash}:1",
            "lacks git": without_git,
        }
    image_registry.remove_images(client)
    client.close()


@pytest.mark.docker
@pytest.mark.parametrize(
    "fault", ["does not exist", "is refused", "not made for", "cannot run", "lacks git"]
)
async def test_an_image_that_is_no_good(
    cluster: Cluster, images: dict[str, str], fault: str
) -> None:
    await check_fault(cluster, fault, image=images[fault])
