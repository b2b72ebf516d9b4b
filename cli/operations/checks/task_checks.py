"""Whether a run can play its tasks: agents, environments and backend, asked before it is stored.

Invariant: no task silently gets another agent, environment or backend than it asks for.
"""

from collections.abc import Sequence

from infra.db.database import Database
from infra.db.tasks import selections, tasks
from mainspring.agents.asking import check_asking
from mainspring.agents.choice import AGENTS, agent_config, agent_for, allowed
from mainspring.agents.tools.acting import ACT
from mainspring.agents.tools.choice import OF_A_SHELL, tools_of
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.registry import is_path
from mainspring.config.run import RunConfig
from mainspring.environments.choice import environment_of, is_world
from mainspring.environments.families import form_of, number_of
from mainspring.errors import ConfigError, UsageError
from mainspring.ids import TaskId
from mainspring.programs.profiles.choice import (
    PROFILES,
    check_context,
    is_program,
    remote_profile,
)
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.sandbox_choice import BWRAP
from mainspring.tasks.swe_task import SWE


async def check_tasks(db: Database, config: RunConfig, used: Sequence[TaskId]) -> None:
    """Raises UsageError for an agent or an environment that does not exist, or could not play."""
    check_context(config.agent, config.policy)
    await check_agents(db, config, used)
    await _check_tools(db, config, used)
    if remote := remote_profile(config.agent):
        await _check_for_outside(db, config, used, takes_rewards=remote.takes_rewards)
        return
    for kind, members in (await selections.kinds(db, used)).items():
        environment_of(config, kind)
        if kind != SWE and is_program(config.agent) and not is_world(config, kind):
            raise UsageError(
                f"run {config.name}: {members.num_tasks} tasks are of the kind {kind!r}, the first "
                f"is {members.example}; the program {config.agent.kind!r} needs a sandbox",
                remedy=f"choose tasks of the kind {SWE!r}, or an agent",
            )
        if kind != SWE or is_path(config.agent.kind):
            # The agent must know what to ask the policy about such a task.
            example = await tasks.get_task(db, members.example)
            check_asking(agent_for(config, example), example)
            check_service(config, example)


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


async def check_agents(db: Database, config: RunConfig, used: Sequence[TaskId]) -> None:
    """Raises UsageError for a task that asks for another agent than one that would play it."""
    agent = config.agent
    if agent.override:
        return
    asks = await selections.asks_for_agent(db, used, allowed(config))
    if asks is None:
        return
    number = "no other does" if asks.num_tasks == 1 else f"{asks.num_tasks} tasks do the like"
    anyway = f"set agent.override = true to play them with {agent.kind!r} all the same"
    again = "import the rows again without agent_name"
    if asks.agent in AGENTS:
        clause = f"and agent.kind = {agent.kind!r} is a program, which plays every task"
        remedy = f"leave agent.kind out, {anyway}, or {again}"
    elif asks.agent in PROFILES:
        clause = f"a program, and agent.kind is {agent.kind!r}"
        remedy = f"set agent.kind = {asks.agent!r}, {anyway}, or {again}"
    else:
        clause = "which does not exist"
        remedy = (
            f"the agents are {', '.join(allowed(config))}: change agent_name, {anyway}, or {again}"
        )
    raise UsageError(
        f"run {config.name}: task {asks.task} asks for the agent {asks.agent!r} (agent_name), "
        f"{clause}; {number}",
        remedy=remedy,
    )


async def _check_tools(db: Database, config: RunConfig, used: Sequence[TaskId]) -> None:
    """Raises UsageError for tools that a task's row asks for and cannot have."""
    for ident in await selections.with_tools(db, used):
        try:
            tools_of(agent_config(config, await tasks.get_task(db, ident)).tools)
        except ConfigError as error:
            raise UsageError(f"run {config.name}: {error.message}", remedy=error.remedy) from error


async def _check_for_outside(
    db: Database, config: RunConfig, used: Sequence[TaskId], *, takes_rewards: bool
) -> None:
    """Raises UsageError for tasks that an agent outside cannot play, or should not see."""
    for kind, members in (await selections.kinds(db, used)).items():
        if kind != SWE and not takes_rewards:
            raise UsageError(
                f"run {config.name}: {members.num_tasks} tasks are of the kind {kind!r}, the first "
                f"is {members.example}; an agent outside has no patch for them",
                remedy=f"choose tasks of the kind {SWE!r}, or set agent.options.rewards = true",
            )
    if hiding := await selections.with_hidden_past(db, used):
        task, number = hiding
        raise UsageError(
            f"run {config.name}: {number} tasks hide something in their sandbox (base_patch, "
            f"hidden_files), the first is {task}; an agent outside would see it",
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
