"""Facts that never change, read once per process: configurations, tasks, a rollout's task.

A campaign's configuration changes by steps (`mainspring.config.files.changes`): that of a step is
one of these facts once a group under the version before it is stored.

A bounded cache in front of the store, so that a turn costs the queries it needs and no more. Only
immutable facts are here: an epoch, a status or a reward never is.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from infra.db.database import Database
from infra.db.rollouts import groups, rollouts
from infra.db.rollouts.groups import GroupRecord
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.agents.choice import agent_config, agent_for
from mainspring.agents.protocol import Agent
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.any_run import AnyRun
from mainspring.config.campaign import CampaignConfig
from mainspring.config.run import RunConfig
from mainspring.config.sampling import SamplingConfig
from mainspring.ids import CampaignId, RolloutId, TaskId
from mainspring.status import GroupKind
from mainspring.tasks.any_task import AnyTask

K = TypeVar("K")
V = TypeVar("V")
MAX_ENTRIES = 4096
"""Rollouts and tasks in use at once on one worker stay well below."""


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """Everything that an activity has to know of a rollout, in one look."""

    campaign: CampaignId
    config: AnyRun
    """With the limits of its task set."""
    task: AnyTask
    """With the agent of its task set, where its row asks for none."""
    temperature: float
    seed: int | None
    sampling: SamplingConfig
    """How its replies are sampled beside their temperature."""

    @property
    def agent(self) -> Agent:
        """The agent that plays it. Raises ConfigError for one that cannot be imported here."""
        return agent_for(self.config, self.task)

    @property
    def agent_config(self) -> AgentConfig:
        """Its section of the configuration."""
        return agent_config(self.config, self.task)


class FactCache:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._configs = _Bounded[tuple[CampaignId, int | None], AnyRun](self._load_config)
        self._tasks = _Bounded[TaskId, AnyTask](self._load_task)
        self._rollouts = _Bounded[RolloutId, RolloutFacts](self._load_rollout)

    async def config(self, campaign: CampaignId, step: int | None = None) -> AnyRun:
        """The run's configuration for a step, of whose rollouts some are stored. None: with the
        changes up to when it was first read here, for what no change is about."""
        return await self._configs.get((campaign, step))

    async def task(self, task: TaskId) -> AnyTask:
        """The task as it is stored."""
        return await self._tasks.get(task)

    async def rollout(self, rollout: RolloutId) -> RolloutFacts:
        """The rollout with its run's configuration and its task."""
        return await self._rollouts.get(rollout)

    async def _load_config(self, key: tuple[CampaignId, int | None]) -> AnyRun:
        campaign, step = key
        record = await campaigns.get(self._db, campaign)
        return record.config if step is None else record.at(step)

    async def _load_task(self, task: TaskId) -> AnyTask:
        return await tasks.get_task(self._db, task)

    async def _load_rollout(self, rollout: RolloutId) -> RolloutFacts:
        record = await rollouts.get(self._db, rollout)
        group = await groups.get(self._db, record.group)
        config = await self.config(record.campaign, group.policy_version + 1)
        task = await self.task(record.task)
        sampling = _sampling(config, group)
        if isinstance(config, RunConfig):
            of = config.task_set(group.split)
            config, task = config.in_set(group.split), task.asking_for(of.agent)
        return RolloutFacts(
            record.campaign, config, task, record.temperature, record.seed, sampling
        )


def _sampling(config: AnyRun, group: GroupRecord) -> SamplingConfig:
    """By fields that never change, so that a rollout that is resumed has the same."""
    of_policy = config.policy.sampling
    if not isinstance(config, CampaignConfig) or group.kind is not GroupKind.EVAL:
        return of_policy
    return config.evaluation.sampling_of(group.split, of_policy)


class _Bounded(Generic[K, V]):
    """Least recently used entries leave first; two that ask at once may both load, harmlessly."""

    def __init__(self, load: Callable[[K], Awaitable[V]]) -> None:
        self._load = load
        self._entries: OrderedDict[K, V] = OrderedDict()

    async def get(self, key: K) -> V:
        if key not in self._entries:
            self._entries[key] = await self._load(key)
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)
        return self._entries[key]
