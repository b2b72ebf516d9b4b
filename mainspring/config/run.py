"""Configuration of every kind of run: name, tasks, and how its rollouts are played and scored.

Invariants: unknown keys are refused; every bound stands on its field. The checked model of a kind
(`any_run`) is stored as JSON with the run, so one that is resumed never depends on its file again.
"""

import re
from pathlib import PurePath
from typing import Annotated, Any, Self

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mainspring.config.agents.agent import AGENT_LIMITS, AgentConfig
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.agents.judges import NAME, JudgeConfig
from mainspring.config.agents.prices import PriceConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.reward import SCORE, RewardConfig
from mainspring.config.rollout import RolloutConfig
from mainspring.config.sandbox import SandboxConfig
from mainspring.config.section import BUNDLED, STORED, Counts, Section, Within
from mainspring.config.tasks import TasksConfig, TaskSet
from mainspring.errors import UsageError
from mainspring.ids import campaign_id
from mainspring.programs.functions import FUNCTION


def _form_of(given: Any) -> str:
    return "<path>" if isinstance(given, str) else "<section>"


def _kind_of(agent: Any) -> Any:
    return agent.get("kind") if isinstance(agent, dict) else getattr(agent, "kind", None)


NamedEnvironment = Annotated[
    Annotated[str, Tag("<path>")] | Annotated[EnvironmentConfig, Tag("<section>")],
    Discriminator(_form_of),
]
"""A class's path, or a service's section."""


class NamedConfig(Section):
    name: Annotated[str, Field(min_length=1)]
    """Name of the run, a part of all its ids: a-z, 0-9 and '-', at most 48 characters."""
    seed: Annotated[int, Within()] = Field(default=0, ge=0, lt=2**31)
    """Seed of tasks, model, order and sampling."""

    @field_validator("name")
    @classmethod
    def _name_is_an_id(cls, name: str) -> str:
        try:
            return campaign_id(name)
        except UsageError as error:
            raise ValueError(str(error)) from None


class RunConfig(NamedConfig):
    """A run of any kind."""

    tasks: TasksConfig = TasksConfig()
    agent: AgentConfig = AgentConfig()
    agents: dict[str, AgentConfig] = Field(default_factory=dict)
    """Further agents, as sections [agents.NAME] with the fields of [agent], programs among them:
    each plays the tasks whose row asks for it (`agent_name`). A limit that one does not set is that
    of [agent]: `step_limit`, `max_format_errors`, `command_timeout_s`, `observation_chars`,
    `rollout_timeout_s`, `cost_limit`; so is `tool_parser`."""
    rollout: RolloutConfig = RolloutConfig()
    policy: PolicyConfig = PolicyConfig()
    sandbox: SandboxConfig = SandboxConfig()
    environments: dict[str, NamedEnvironment] = Field(default_factory=dict)
    """Environments by kind of task: a class of your own as "package.module:Class", or a service
    over HTTP as a section [environments.NAME]. Tasks of the kind "swe" need none: they have a
    sandbox, a patch and hidden tests. Nor do tasks that a function plays and scores."""
    judges: dict[str, JudgeConfig] = Field(default_factory=dict)
    """Models that score turns or rollouts, by name; a part of the reward uses each."""
    reward: RewardConfig = RewardConfig()
    prices: Annotated[dict[str, PriceConfig], Counts.ROLLOUTS] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _functions_give_scores(cls, raw: Any) -> Any:
        """Make what a function returned, or a service told, its rollout's reward, unless the file
        names others. A task with a repository scores 1 when it is resolved, as ever."""
        if not isinstance(raw, dict):
            return raw
        reward, agents = raw.get("reward", {}), raw.get("agents")
        sections = [raw.get("agent"), *(agents.values() if isinstance(agents, dict) else ())]
        environments = raw.get("environments")
        named = environments.values() if isinstance(environments, dict) else ()
        gives_score = FUNCTION in map(_kind_of, sections) or any(
            not isinstance(each, str) for each in named
        )
        if not gives_score or not isinstance(reward, dict) or "parts" in reward:
            return raw
        return {**raw, "reward": {**reward, "parts": [{"name": SCORE}]}}

    @model_validator(mode="before")
    @classmethod
    def _further_agents_have_its_limits(cls, raw: Any) -> Any:
        agents = raw.get("agents") if isinstance(raw, dict) else None
        if not isinstance(agents, dict):
            return raw
        agent = raw.get("agent", {})
        if isinstance(agent, AgentConfig):
            agent = agent.model_dump(exclude_unset=True)
        if not isinstance(agent, dict):
            return raw
        limits = {name: value for name, value in agent.items() if name in AGENT_LIMITS}
        filled = {
            name: limits | table if isinstance(table, dict) else table
            for name, table in agents.items()
        }
        return {**raw, "agents": filled}

    @field_validator("judges")
    @classmethod
    def _judges_have_plain_names(
        cls, judges: dict[str, JudgeConfig], info: ValidationInfo
    ) -> dict[str, JudgeConfig]:
        for name in judges if info.context != STORED else ():
            if not re.fullmatch(NAME, name):
                raise ValueError(
                    f"{name!r} is no name of a judge: letters, digits, - and _, at most 40"
                )
        return judges

    @model_validator(mode="after")
    def _judges_of_parts_exist(self, info: ValidationInfo) -> Self:
        for part in self.reward.parts if info.context != STORED else ():
            if part.judge is not None and part.judge not in self.judges:
                there = ", ".join(self.judges) or "none"
                raise ValueError(
                    f"reward.parts: judge = {part.judge!r} has no section [judges.{part.judge}]; "
                    f"there are: {there}"
                )
        return self

    @model_validator(mode="after")
    def _prices_are_of_the_policy(self, info: ValidationInfo) -> Self:
        if info.context == STORED:
            return self
        model = self.policy.model
        others = [name for name in self.prices if name not in self._names_of_model]
        if others:
            raise ValueError(
                f"prices.{others[0]}: the run does not use this model; its calls are those of "
                f"policy.model = {model!r}"
            )
        limited = self._limited_costs()
        if limited and self.price is None:
            raise ValueError(
                f"{limited[0]}.cost_limit needs the price of the model {model!r}: add a section "
                f'[prices."{model}"] with input and output, in dollars for a million tokens'
            )
        return self

    def _limited_costs(self) -> list[str]:
        """Sections with a cost_limit."""
        return [name for name, each in self.agent_sections.items() if each.cost_limit]

    @property
    def _names_of_model(self) -> tuple[str, ...]:
        """Names under which its price may stand: of a directory also the last part."""
        model = self.policy.model
        return (model, PurePath(model).name) if self.policy.api.gives_tokens else (model,)

    @property
    def price(self) -> PriceConfig | None:
        """Price of the policy's model; None: it has none."""
        return next(
            (self.prices[each] for each in self._names_of_model if each in self.prices), None
        )

    @property
    def agent_sections(self) -> dict[str, AgentConfig]:
        """Every section whose agent may play, by its name in the file. Which one plays a task, its
        row tells: `mainspring.agents.choice`."""
        if self.agent.override:
            return {"agent": self.agent}
        further = {f"agents.{name}": agent for name, agent in self.agents.items()}
        return {"agent": self.agent, **further}

    @property
    def repeats(self) -> bool:
        """Its rollouts must come out the same a second time."""
        return False

    @property
    def task_source(self) -> str:
        """Where the run's tasks are listed in the store; bundled ones depend on the seed."""
        return self.listed_as(self.tasks.source)

    def listed_as(self, source: str) -> str:
        """The name under which the store lists tasks of `source`."""
        return f"{BUNDLED}-s{self.seed}" if source == BUNDLED else source

    def task_set(self, label: str) -> TaskSet:
        """Tasks that the run goes over under this label, which is a split of its source."""
        return TaskSet(
            self.task_source,
            label,
            self.split_size(label),
            unverified=self.tasks.unverified,
            is_bundled=self.tasks.source == BUNDLED,
        )

    @property
    def agents_of_sets(self) -> dict[str, str]:
        """By label: the agent of tasks that ask for none, where it is not [agent]."""
        return {}

    def in_set(self, label: str) -> Self:
        """The configuration that rollouts of the tasks under this label have."""
        return self

    def split_size(self, split: str) -> int | None:
        """How many tasks of `split` the run uses; None: all of them."""
        return self.size_in(self.tasks.source, split)

    def size_in(self, source: str, split: str) -> int | None:
        """How many tasks of this split a run uses at most; None: there is no bound."""
        if source != BUNDLED:
            return None
        return {
            "train": self.tasks.num_train,
            "heldout": self.tasks.num_heldout,
            "heldout_templates": self.tasks.num_heldout_templates,
        }.get(split, 0)
