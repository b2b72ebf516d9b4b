"""The sandbox node: a container host as a Temporal worker, without an open port.

Three queues on one client. Shared with all nodes: opens, polled while there is room, and gradings,
polled always, so that a node full of agents still grades; a node that drains polls neither. The
node's own queue has everything that must happen in a sandbox it holds, and opens that would like
its images. That queue's name is the node's stable id, so a restarted process hears of the sandboxes
its predecessor left.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.cross_testing import CrossTestActivities
from activities.extensions import ExtensionActivities
from activities.grading import GradingActivities
from activities.playing import PlayingActivities
from activities.programs.function_lives import FunctionLives
from activities.programs.programs import ProgramActivities
from activities.replies.replies import ReplyActivities
from activities.sandbox import SandboxActivities
from infra import gateway_addresses
from infra.db.cache import FactCache
from infra.db.connect import PoolRole, open_database
from infra.db.database import Database
from infra.db.nodes import nodes
from infra.db.nodes.sandboxes import between_sandboxes, open_leases
from infra.db.runs import events
from infra.environments.hosted import Environments
from infra.log_setup import set_up
from infra.policy.serving import Serve, ServedCampaigns, serve_over_http
from infra.sandbox.backends import Backends, available_backends
from infra.sandbox.bubblewrap import cgroup
from infra.sandbox.containers.docker import DockerBackend
from infra.sandbox.containers.image_names import parse_mirrors
from infra.sandbox.containers.images import present_images
from infra.sandbox.pool import WarmPool
from infra.sandbox.protocol import BackendUnavailable
from infra.temporal.log import runtime
from infra.temporal.takeover import end_attempts, worker_identity
from infra.tracking import telemetry
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import DatabaseError, ServiceError
from mainspring.ids import GRADE_QUEUE, SANDBOX_QUEUE, NodeId, node_queue, rollout_workflow
from mainspring.status import EventKind
from mainspring.tasks.sandbox_choice import DOCKER
from node.beat import NodePulse
from node.capacity import Admission, SandboxSlots
from node.held_sandboxes import HeldSandboxes
from node.lock import NodeLock
from node.prewarm import Readiness
from node.reaper import Reaper
from workers.polling import node_worker, poll_until_stopped, run_worker
from workers.service_link import ServiceLink

GRADINGS = os.cpu_count() or 1
"""Hidden tests are work for a core; more at once would only time out."""

MAX_TAKEN_OVER = 500
"""Most rollouts that wait for a sandbox: Temporal is asked about each, before the node is up."""

log = structlog.get_logger()


def main(
    home: Path | None,
    capacity: int,
    num_warm: int,
    leave_sandboxes: bool,
    *,
    backends: Backends | None = None,
    serve: Serve | None = None,
) -> None:
    """`backends` and `serve` take the place of what this machine has and of engines over HTTP."""
    settings = load_settings(home)
    set_up(settings.log_format)
    telemetry.begin("node")
    lock = NodeLock(settings.home, NodeId(settings.node_id))
    if not lock.take_at_once():
        log.info(
            "another process is this node: waiting until it ends",
            node=settings.node_id,
            pid=lock.holder(),
        )
        lock.wait()
    lock.take_home()
    run_worker(_run(home, capacity, num_warm, leave_sandboxes, lock, backends, serve))


@dataclass(frozen=True, slots=True)
class SandboxNode:
    """One node, put together and not yet polling."""

    own: Worker
    """Worker of the node's own queue. Those of the shared queues belong to the beat."""
    beat: NodePulse
    reaper: Reaper
    held: HeldSandboxes
    admission: Admission
    readiness: Readiness
    served: ServedCampaigns
    """For campaigns whose nodes ask the engines themselves."""
    functions: FunctionLives
    environments: Environments


def make_node(
    client: Client,
    db: Database,
    settings: Settings,
    backends: Backends,
    capacity: int,
    images: Callable[[], list[str]] | None = None,
    num_warm: int = 0,
    serve: Serve | None = None,
) -> SandboxNode:
    """`images` lists the images present; without it Docker is asked, where the node has it.
    `serve` gives the policy of a campaign; without it, its engines are asked over HTTP."""
    node = NodeId(settings.node_id)
    docker = backends.get(DOCKER)
    by_docker = docker if isinstance(docker, DockerBackend) else None
    pools = {
        name: WarmPool(backend, num_warm)
        for name, backend in backends.working().items()
        if num_warm
    }
    backends = backends.with_backends(pools)
    cache = FactCache(db)

    async def tell_failed(campaign: str, environment: str, text: str) -> None:
        event = events.Event(EventKind.ENVIRONMENT_FAILED, environment, text, campaign)
        await events.tell(db, event)

    environments = Environments(backends, settings.home / "environments" / node, tell_failed)
    held = HeldSandboxes(db, cache, node, environments)
    admission = Admission(node, capacity, lambda: len(held), settings)
    sandboxes = SandboxActivities(db, cache, node, held, admission)
    grading = GradingActivities(db, cache, node, environments)
    over_http = partial(serve_over_http, api_key=settings.policy_api_key)
    crossing = CrossTestActivities(db, cache, node, environments)
    served = ServedCampaigns(db, serve or over_http)
    gateways = partial(gateway_addresses.found, settings)
    functions = FunctionLives(db, held, settings.home / "functions" / node, gateways)
    programs = ProgramActivities(db, cache, held, gateways, functions)
    playing = PlayingActivities(cache, node, held, ReplyActivities(db, cache, served), sandboxes)

    def shared() -> list[Worker]:
        return [
            node_worker(
                client,
                task_queue=SANDBOX_QUEUE,
                activities=[sandboxes.open_sandbox],
                tuner=SandboxSlots(admission).tuner(),
            ),
            node_worker(
                client,
                task_queue=GRADE_QUEUE,
                activities=[grading.give_patch, grading.grade, crossing.cross_test],
                max_concurrent_activities=GRADINGS,
            ),
        ]

    own = node_worker(
        client,
        task_queue=node_queue(node),
        activities=[
            sandboxes.open_sandbox,
            sandboxes.execute,
            playing.play_turns,
            programs.run_program,
            sandboxes.restore_sandbox,
            sandboxes.collect_patch,
            sandboxes.close_sandbox,
            ExtensionActivities().check_extensions,
        ],
        max_concurrent_activities=capacity * 4,
    )
    return SandboxNode(
        own,
        NodePulse(
            db,
            admission,
            backends,
            images or (present_images if by_docker else list),
            shared,
            runtime(settings.metrics_address).metric_meter,
        ),
        Reaper(db, node, backends, held),
        held,
        admission,
        Readiness(
            db,
            cache,
            admission,
            pools,
            by_docker.images if by_docker else None,
            settings.node_min_free_disk_mb,
        ),
        served,
        functions,
        environments,
    )


async def _run(
    home: Path | None,
    capacity: int,
    num_warm: int,
    leave_sandboxes: bool,
    lock: NodeLock,
    backends: Backends | None,
    serve: Serve | None,
) -> None:
    settings = load_settings(home)
    if backends is None:
        backends = await available_backends(
            settings.home / "sandboxes", parse_mirrors(settings.image_mirrors)
        )
    if not backends.working():
        raise BackendUnavailable(
            "no sandbox backend works on this machine:\n"
            + "\n".join(f"  {name}: {reason}" for name, reason in backends.items()),
            remedy="see `mainspring doctor`",
        )
    async with open_database(settings, PoolRole.NODE) as db:
        name = NodeId(settings.node_id)
        link = await ServiceLink.open(settings, db, name=worker_identity(name))
        node = make_node(
            link.client, db, settings, backends, capacity, num_warm=num_warm, serve=serve
        )
        left = {lease.rollout for lease in await open_leases(db, name)}
        left |= set(await between_sandboxes(db, MAX_TAKEN_OVER))
        adopted = await node.held.adopt()
        await node.functions.clear_left()
        await node.environments.services.clear_left()
        retried = await end_attempts(
            link.client,
            f"node {name}",
            [rollout_workflow(rollout) for rollout in left],
        )
        await node.reaper.reap()
        link.announce(
            "node",
            node.own.task_queue,
            node=settings.node_id,
            capacity=capacity,
            adopted=adopted,
            retried=retried,
            without_control_groups=dict(cgroup.available().missing),
        )
        had = f", took over {adopted} sandboxes" if adopted else ""
        text = f"node {name} began{had}"
        data = {"adopted": adopted, "retried": retried}
        await events.tell(db, events.Event(EventKind.NODE_BEGAN, name, text, data=data))
        beside = (node.reaper, node.beat, node.readiness)
        try:
            await poll_until_stopped(link, [node.own], *(service.run_forever for service in beside))
        except ServiceError:
            leave_sandboxes = True  # the next process, or this one anew, takes them over
            raise
        finally:
            await node.readiness.close()
            await node.served.close()
            await _leave(node, db, leave_sandboxes or lock.is_awaited())
            await node.environments.services.close()


async def _leave(node: SandboxNode, db: Database, leave_sandboxes: bool) -> None:
    try:
        if not leave_sandboxes:
            await node.held.release_all()
        await nodes.say_goodbye(db, node.admission.node)
    except DatabaseError as error:
        log.warning("the store does not know that this node has ended", reason=error.message)
