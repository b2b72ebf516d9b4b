"""The node gets ready for what campaigns will need next: images pulled, sandboxes kept warm.

Only makes things faster: what it gets wrong or cannot do is done when somebody needs it, and the
error is met and reported there. Images that are not needed are removed when the disk runs low. Runs
beside the node's workers.
"""

import asyncio
import contextlib
from collections.abc import Mapping

import structlog

from infra.bundles.store import BundleMissing, mounts_for
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.plans.forecast import upcoming
from infra.environments.swe import sandbox_spec
from infra.sandbox.containers.images import ImageStore
from infra.sandbox.pool import WarmPool
from infra.sandbox.protocol import SandboxSpec
from mainspring.agents.choice import agent_config
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.errors import DatabaseError, SandboxError
from mainspring.ids import SandboxId
from mainspring.programs.profiles.choice import folders_of
from mainspring.protocol.timeouts import TEND_EVERY_S
from mainspring.tasks.sandbox_choice import DOCKER, backend_name
from mainspring.tasks.swe_task import SweTask
from node.capacity import Admission

LOOK_EVERY_S = 2.0
MIN_AHEAD = 32
"""Coming sandboxes whose images are pulled, however few are kept ready."""

log = structlog.get_logger()


class Readiness:
    def __init__(
        self,
        db: Database,
        cache: FactCache,
        admission: Admission,
        pools: Mapping[str, WarmPool],
        images: ImageStore | None,
        min_free_disk_mb: int,
    ) -> None:
        """`images`: of the node's Docker daemon, where it has one."""
        self._db = db
        self._cache = cache
        self._admission = admission
        self._pools = pools
        self._images = images
        self._min_free_disk_mb = min_free_disk_mb
        self._needed: set[str] = set()
        self._pulls: dict[str, asyncio.Task[None]] = {}

    async def look(self) -> None:
        """Once: pulls begin, every pool gets what is its; nothing when the node takes nothing new.
        Raises DatabaseError."""
        specs: dict[str, list[SandboxSpec]] = {name: [] for name in self._pools}
        limit = max(MIN_AHEAD, *(pool.size for pool in self._pools.values()), 0)
        takes_new = self._admission.refusal() is None
        coming = await upcoming(self._db, self._admission.node, limit) if takes_new else []
        needed: set[str] = set()
        for rollout in coming:
            task = await self._cache.task(rollout.task)
            if not isinstance(task, SweTask):
                continue
            config = await self._cache.config(rollout.campaign)
            labels = {"campaign": rollout.campaign, "node": self._admission.node}
            name = backend_name(config.sandbox.backend, task.image)
            if task.image is not None and name == DOCKER:
                needed.add(task.image)
            # A clock starts when its sandbox opens: not before it is needed.
            if name in specs and task.clock is None:
                # A verification may be of tasks whose agent does not exist.
                plays = isinstance(config, CampaignConfig | EvaluationConfig)
                asking = task.asking_for(config.task_set(rollout.label).agent)
                agent = agent_config(config, asking) if plays else config.agent
                with contextlib.suppress(BundleMissing):  # the rollout that needs it is told
                    spec = sandbox_spec(
                        SandboxId("idle"),
                        task,
                        config.sandbox,
                        labels,
                        repeats=config.repeats,
                        mounts=mounts_for(agent),
                        folders=folders_of(agent),
                    )
                    specs[name].append(spec)
        self._needed = needed
        self._pull()
        await asyncio.gather(*(pool.prepare(specs[name]) for name, pool in self._pools.items()))

    async def tend(self) -> None:
        """Once, and more rarely. Raises SandboxError."""
        await asyncio.gather(*(pool.ping() for pool in self._pools.values()))
        if self._images is not None:
            await self._images.collect(self._min_free_disk_mb, in_use=self._needed)

    async def run_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        tended_at = 0.0
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
                if clock() - tended_at > TEND_EVERY_S:
                    tended_at = clock()
                    await self.tend()
            except (DatabaseError, SandboxError) as error:
                log.warning("not ready for what comes next", reason=error.message)

    async def close(self) -> None:
        for pull in self._pulls.values():
            pull.cancel()
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    def _pull(self) -> None:
        self._pulls = {image: pull for image, pull in self._pulls.items() if not pull.done()}
        if self._images is not None:
            for image in self._needed - self._pulls.keys():
                self._pulls[image] = asyncio.create_task(self._ensure(self._images, image))

    async def _ensure(self, images: ImageStore, image: str) -> None:
        try:
            await images.ensure(image)
        except SandboxError as error:
            log.info("image not pulled ahead", image=image, reason=error.message)
