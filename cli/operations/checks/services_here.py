"""Services of environments, tried on this machine before a run is stored: a world of one of the
run's own tasks is opened, stepped and closed again.

Invariant: nothing is left of the try; a service that runs elsewhere and cannot close a world is
only asked whether it is there. Used where this machine's own node will play.
"""

from collections.abc import Sequence
from contextlib import suppress

from infra.db.database import Database
from infra.db.tasks import selections, tasks
from infra.environments.gym.environment import GymEnvironment
from infra.environments.gym.services import LOOK_S, GymServices
from infra.sandbox.protocol import SandboxRefused
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.run import RunConfig
from mainspring.environments.families import form_of
from mainspring.environments.protocol import EnvironmentBroken, Place, WorldLost
from mainspring.errors import SandboxError, ServiceError, UsageError
from mainspring.ids import RolloutId, SandboxId, TaskId
from mainspring.tasks.own_task import OwnTask

ACTION = "look around"


async def require_services(db: Database, config: RunConfig, used: Sequence[TaskId]) -> None:
    """Raises ServiceError for a service that does not answer, and UsageError for one that cannot be
    started, speaks another form, or does not have the task."""
    sections = {
        kind: section
        for kind, section in config.environments.items()
        if isinstance(section, EnvironmentConfig)
    }
    if not sections:
        return
    services = GymServices(None)
    try:
        for kind, members in (await selections.kinds(db, used)).items():
            if kind in sections:
                task = await tasks.get_task(db, members.example)
                assert isinstance(task, OwnTask), task.id
                await _try(services, config, sections[kind], task)
    finally:
        await services.close()


async def _try(
    services: GymServices, config: RunConfig, section: EnvironmentConfig, task: OwnTask
) -> None:
    run = f"run {config.name}, nothing was stored"
    if section.url and not form_of(section).closes:
        service = services.of(config.name, task.kind, section)
        async with service.asking() as client:
            if not await client.is_there(LOOK_S):
                raise ServiceError(
                    f"{run}: environment {task.kind}: nothing answers at {section.url}",
                    remedy=f"start the service, or correct environments.{task.kind}.url",
                )
        return
    place = Place(SandboxId("try"), RolloutId("try"), config, {}, _no_lease)
    try:
        world = await GymEnvironment(task.kind, section, services).open(task, place)
    except (EnvironmentBroken, SandboxRefused) as error:
        raise UsageError(f"{run}: {error.message}", remedy=error.remedy) from error
    except SandboxError as error:
        raise ServiceError(f"{run}: {error.message}", remedy=error.remedy) from error
    try:
        # Whatever the action does: its answer has the form of every other one.
        with suppress(WorldLost):
            await world.step("try", ACTION, section.request_timeout_s)
    except EnvironmentBroken as error:
        raise UsageError(f"{run}: {error.message}", remedy=error.remedy) from error
    finally:
        await world.close()


async def _no_lease(backend: str) -> None:
    """A try is no rollout: nothing has to be found after it."""
