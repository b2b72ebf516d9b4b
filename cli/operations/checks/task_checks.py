"""Whether a run can play its tasks: agents, environments and backend, asked before it is stored.

Invariant: no task silently gets another agent, environment or backend than it asks for.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from infra.db.database import Database
from infra.db.tasks import selections, tasks
from infra.db.tasks.selections import AskedFor
from mainspring.agents.asking import check_asking
from mainspring.agents.choice import (
    agent_config,
    agent_for,
    allowed,
    check_agents,
    check_contexts,
    with_asked,
)
from mainspring.agents.tools.acting import ACT
from mainspring.agents.tools.choice import OF_A_SHELL, tools_of
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.choosing import ChooseBy
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.registry import is_path
from mainspring.config.run import RunConfig
from mainspring.environments.choice import check_world
from mainspring.environments.families import form_of, number_of
from mainspring.errors import ConfigError, UsageError
from mainspring.ids import TaskId
from mainspring.programs.profiles.choice import is_program, remote_profile
from mainspring.rewards.judges import check_judges
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.sandbox_choice import BWRAP
from mainspring.tasks.swe_task import SWE

R = TypeVar("R", bound=RunConfig)


async def check_tasks(db: Database, config: R, used: Sequence[TaskId], by: str | None = None) -> R:
    """The run as it is played (`as_played`). Raises UsageError for an agent or an environment that
    does not exist, or could not play. `by`: the agent of tasks that ask for none; None: [agent]."""
    config = await check_asked(db, config, used, by)
    check_contexts(config)
    await _check_tools(db, config, used, by)
    hiding = {each.agent: each for each in await selections.with_hidden_past(db, used, by)}
    for group in await selections.asked_for(db, used, by):
        task = (await tasks.get_task(db, group.example)).asking_for(by)
        agent = agent_config(config, task)
        if remote := remote_profile(agent):
            _check_for_outside(config, group, hiding, takes_rewards=remote.takes_rewards)
            continue
        try:
            check_world(config, task)
        except ConfigError as error:
            raise UsageError(
                f"run {config.name}: {_told(group)}; {error.message}", remedy=error.remedy
            ) from error
        # The agent must know what to ask the policy about such a task.
        if not is_program(agent) and (group.kind != SWE or is_path(agent.kind)):
            check_asking(agent_for(config, task), task)
            check_service(config, task)
    return config


def _told(group: AskedFor) -> str:
    asks = "" if group.agent is None else f" and ask for the agent {group.agent!r}"
    if group.num_tasks == 1:
        return f"task {group.example} is of the kind {group.kind!r}{asks.replace('ask', 'asks', 1)}"
    number = f"{group.num_tasks} tasks are of the kind {group.kind!r}{asks}"
    return f"{number}, the first is {group.example}"


def check_service(config: RunConfig, task: AnyTask) -> None:
    """Raises UsageError for a task of a service whose row names no number of it, or whose agent
    would send it commands of a shell."""
    service = config.environments.get(task.kind)
    if not isinstance(service, EnvironmentConfig) or not isinstance(task, OwnTask):
        return
    try:
        number_of(task.data, form_of(service))
    except ValueError as error:
        raise UsageError(
            f"run {config.name}: task {task.id} of environment {task.kind}: {error}",
            remedy="correct its row and import it again, or import the tasks from the service "
            "(`mainspring tasks import FILE`)",
        ) from None
    agent = agent_config(config, task)
    of_shell = sorted(OF_A_SHELL.intersection(agent.tools))
    if agent.kind in ("react", "tools") and of_shell:
        raise UsageError(
            f"run {config.name}: task {task.id} is played in the service of environment "
            f"{task.kind}, and agent.tools has {', '.join(of_shell)}, which need a sandbox",
            remedy=f'set agent.tools = ["{ACT}"], or name tools of your own',
        )


async def check_asked(db: Database, config: R, used: Sequence[TaskId], by: str | None = None) -> R:
    """The run as it is played (`as_played`). Raises UsageError for tasks that ask for an agent
    which does not exist, or cannot play in this run."""
    if config.agent.override:
        return config
    groups = [each for each in await selections.asked_for(db, used, by) if each.agent is not None]
    known = allowed(config)
    if unknown := [each for each in groups if each.agent not in known]:
        first, number = unknown[0], sum(each.num_tasks for each in unknown)
        others = "" if number == 1 else f"; {number} tasks ask for agents that do not exist"
        raise UsageError(
            f"{_asks(config, first)}, which does not exist{others}",
            remedy=f"the agents are {', '.join(known)}: change agent_name, {_anyway(config)}, or "
            "import the rows again without agent_name",
        )
    for each in groups:
        whole = with_asked(config, [each.agent or ""])
        if whole is config:  # it has a section, which was asked for all of this before
            continue
        try:
            check_agents(whole)
            check_judges(whole)
            check_contexts(whole)
        except ConfigError as error:
            raise UsageError(
                f"{_asks(config, each)}: {error.message}",
                remedy=f"{error.remedy}; or {_anyway(config)}",
            ) from error
        if isinstance(whole, CampaignConfig) and (sentence := whole.not_reproducible()):
            raise UsageError(f"{_asks(config, each)}: {sentence}", remedy=_anyway(config))
    return _with_groups(config, groups)


async def as_played(db: Database, config: R) -> R:
    """A run whose tasks are stored, with a section for each agent that they ask for by its kind:
    so each check of a section checks these, too."""
    if not isinstance(config, CampaignConfig | EvaluationConfig):
        return config
    used = [id for split in config.splits for id in await selections.task_ids(db, config, split)]
    return _with_groups(config, await selections.asked_for(db, used))


def _with_groups(config: R, groups: Sequence[AskedFor]) -> R:
    return with_asked(config, dict.fromkeys(each.agent for each in groups if each.agent))


def _asks(config: RunConfig, group: AskedFor) -> str:
    return (
        f"run {config.name}: task {group.example} asks for the agent {group.agent!r} (agent_name)"
    )


async def _check_tools(
    db: Database, config: RunConfig, used: Sequence[TaskId], by: str | None
) -> None:
    """Raises UsageError for tools that a task's row asks for and cannot have."""
    for ident in await selections.with_tools(db, used):
        try:
            task = (await tasks.get_task(db, ident)).asking_for(by)
            tools_of(agent_config(config, task).tools)
        except ConfigError as error:
            raise UsageError(f"run {config.name}: {error.message}", remedy=error.remedy) from error


def _anyway(config: RunConfig) -> str:
    return f"set agent.override = true to play them with {config.agent.kind!r} all the same"


def _check_for_outside(
    config: RunConfig,
    group: AskedFor,
    hiding: Mapping[str | None, AskedFor],
    *,
    takes_rewards: bool,
) -> None:
    """Raises UsageError for tasks that an agent outside cannot play, or should not see. `hiding`:
    those that hide something, by the agent that they ask for."""
    if group.kind != SWE and not takes_rewards:
        raise UsageError(
            f"run {config.name}: {_told(group)}; an agent outside has no patch for them",
            remedy=f"choose tasks of the kind {SWE!r}, or set agent.options.rewards = true",
        )
    hides = hiding.get(group.agent)
    if group.kind == SWE and hides is not None:
        raise UsageError(
            f"run {config.name}: {hides.num_tasks} tasks hide something in their sandbox "
            f"(base_patch, hidden_files), the first is {hides.example}; an agent outside would see "
            "it",
            remedy="choose other tasks, or an agent that plays in the sandbox",
        )


async def check_can_be_verified(db: Database, config: RunConfig, used: Sequence[TaskId]) -> None:
    """Raises UsageError for tasks that have no patches."""
    for kind, members in (await selections.kinds(db, used)).items():
        if kind != SWE:
            raise UsageError(
                f"run {config.name}: {members.num_tasks} tasks are of the kind {kind!r}, the first "
                f"is {members.example}; only tasks of the kind {SWE!r} can be verified",
                remedy="they need no verification: campaigns use them without it",
            )


async def check_chooses(db: Database, config: EvaluationConfig, used: Sequence[TaskId]) -> None:
    """Raises UsageError for tasks whose rollouts leave no patches that tests can be run against."""
    if config.choose is None or config.choose.by is not ChooseBy.CROSS_TESTS:
        return
    for kind, members in (await selections.kinds(db, used)).items():
        if kind != SWE:
            raise UsageError(
                f"run {config.name}: {members.num_tasks} tasks are of the kind {kind!r}, the first "
                f"is {members.example}; evaluation.choose.by = {ChooseBy.CROSS_TESTS.value!r} runs "
                f"tests against patches, which only tasks of the kind {SWE!r} have",
                remedy=f"choose tasks of the kind {SWE!r}, or set another evaluation.choose.by, as "
                f'"{ChooseBy.MAJORITY}"',
            )
    if own := config.environments.get(SWE):
        raise UsageError(
            f"run {config.name}: [environments] has {own!r} for tasks of the kind {SWE!r}, and "
            f"evaluation.choose.by = {ChooseBy.CROSS_TESTS.value!r} needs Mainspring's own",
            remedy=f'leave it out, or set another evaluation.choose.by, as "{ChooseBy.MAJORITY}"',
        )


async def check_backend_fits(db: Database, config: RunConfig, used: Sequence[TaskId]) -> None:
    """Raises UsageError for tasks that the configured backend can never run."""
    if config.sandbox.backend != BWRAP:
        return
    if with_image := await selections.num_with_image(db, used):
        raise UsageError(
            f"campaign {config.name}: {with_image} of its {len(used)} tasks have an image, and "
            f"sandbox.backend = {BWRAP!r} runs none",
            remedy="leave sandbox.backend out: then a task with an image runs in Docker, and one "
            f"without in {BWRAP}",
        )
