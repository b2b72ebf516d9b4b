"""Record workflow histories for test_recorded_histories: `python tests/replay/record.py FOLDER`.

Run it with the program whose histories later versions must replay, and commit the files. Everything
in it is real but the policy and the trainer, which are the workflow tests' own.
"""

import asyncio
import gzip
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "workflows")]

from cluster import Cluster, Host, bwrap_or_skip, cluster_of  # noqa: E402
from cross_tested import evaluation, put_task, saying  # noqa: E402
from scripted import SUBMIT, bash  # noqa: E402
from scripted_trainer import Hold, mixed, small_config, trainer_of  # noqa: E402
from temporalio.client import WorkflowHandle  # noqa: E402

from bundled.gold import make_gold_tasks  # noqa: E402
from cli.operations.machine.embedded_stack import temporary  # noqa: E402
from cli.operations.runs import campaign_launch as launch  # noqa: E402
from infra.db.tasks import tasks  # noqa: E402
from mainspring.config.evaluations.verification import VerificationConfig  # noqa: E402
from mainspring.config.policy import PolicyConfig  # noqa: E402
from mainspring.config.tasks import TasksConfig  # noqa: E402
from mainspring.errors import EngineError  # noqa: E402
from mainspring.ids import (  # noqa: E402
    CampaignId,
    NodeId,
    SandboxId,
    eval_group_id,
    evaluation_workflow,
    group_id,
    group_workflow,
    rollout_id,
    rollout_workflow,
    run_group_id,
)

FIX = bash("sed -i 's/a - b/a + b/' calc.py")


async def record(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as sandboxes:
        backends = await bwrap_or_skip(Path(sandboxes))
        async with (
            temporary("mainspring-record-") as stack,
            cluster_of(stack, {NodeId("record"): Host(backends, capacity=8)}) as cluster,
        ):
            for scene in (rollouts, campaign, verification, cross_tests):
                for name, handle in (await scene(cluster)).items():
                    history = await handle.fetch_history()
                    packed = gzip.compress(history.to_json().encode(), mtime=0)
                    (directory / f"{name}.json.gz").write_bytes(packed)
                    print(f"{name}: {len(history.events)} events, {len(packed)} bytes")


async def rollouts(cluster: Cluster) -> dict[str, WorkflowHandle]:
    def refuse(rollout: str, turn: int) -> str:
        raise EngineError("the engine refuses the request")

    async def kill_sandboxes(_: str) -> None:
        if len(cluster.policy.asked) == 1:
            for sandbox in cluster.held.ids():
                await cluster.held.release(SandboxId(sandbox))

    async def one(say: Callable[[str, int], str]) -> WorkflowHandle:
        cluster.policy.asked.clear()
        cluster.policy.say = say
        campaign, group, [rollout] = await cluster.make_rollouts()
        handle = await cluster.start(rollout, campaign, group)
        await handle.result()
        return handle

    made = {
        "rollout-submitted": await one(lambda _, turn: (FIX, "no block", SUBMIT)[turn]),
        "rollout-format-errors": await one(lambda _, turn: "no block"),
        "rollout-step-limit": await one(lambda _, turn: FIX),
        "rollout-masked": await one(refuse),
    }
    cluster.policy.hold = kill_sandboxes
    made["rollout-rebuilt"] = await one(lambda _, turn: (FIX, bash("cat calc.py"), SUBMIT)[turn])
    cluster.policy.hold = None
    return made


async def campaign(cluster: Cluster) -> dict[str, WorkflowHandle]:
    cluster.policy.say = mixed
    config = await small_config(cluster, num_steps=2)
    async with trainer_of(cluster, CampaignId(config.name), Hold("nowhere")):
        name = await launch.create(cluster.db, config)
        handle = await launch.start(cluster.client, cluster.db, name)
        await handle.result()
    group = group_id(name, 0)
    evaluation = eval_group_id(name, "heldout", "sampled", 0)
    get = cluster.client.get_workflow_handle
    return {
        "campaign": handle,
        "group": get(group_workflow(group)),
        "evaluation": get(evaluation_workflow(evaluation)),
        "rollout-trained": get(rollout_workflow(rollout_id(group, 0))),
    }


async def verification(cluster: Cluster) -> dict[str, WorkflowHandle]:
    source = "record"
    made = make_gold_tasks(1, source, 2)
    await tasks.put_tasks(cluster.db, made)
    config = VerificationConfig(
        name="record-verify",
        tasks=TasksConfig(source=source),
        split=made[0].split,
        policy=PolicyConfig(model="scripted", max_context=1000, max_new_tokens=100),
    )
    name = await launch.create(cluster.db, config)
    handle = await launch.start(cluster.client, cluster.db, name)
    await handle.result()
    first = rollout_id(run_group_id(name, 0), 0)
    return {
        "verification": handle,
        "rollout-given": cluster.client.get_workflow_handle(rollout_workflow(first)),
    }


async def cross_tests(cluster: Cluster) -> dict[str, WorkflowHandle]:
    cluster.policy.say = saying()
    name = await launch.create(cluster.db, evaluation(await put_task(cluster.db)))
    handle = await launch.start(cluster.client, cluster.db, name)
    await handle.result()
    return {"evaluation-cross-tests": handle}


if __name__ == "__main__":
    asyncio.run(record(Path(sys.argv[1])))
