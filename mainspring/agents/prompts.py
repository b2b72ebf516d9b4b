"""The texts of an agent: its own, or those of [agent.prompts].

Invariants: pure; each kind of text has its names, and one that uses another name is refused before
a run is stored. Imported by the agents beside this file and by agents of your own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Self

from mainspring.agents.observation import (
    ACTED,
    FORMAT_ERROR,
    OBSERVATION,
    render_format_error,
    render_observation,
)
from mainspring.agents.protocol import Message
from mainspring.agents.templates import check_template, render
from mainspring.agents.tools.protocol import only_text
from mainspring.config.agents.agent import AgentConfig, ReactConfig
from mainspring.config.agents.prompts import PromptsConfig
from mainspring.programs.request import ToolSpec
from mainspring.tasks.swe_task import SweTask
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Execution


@dataclass(frozen=True, slots=True)
class Prompts:
    """Templates; see PromptsConfig for the names that each has."""

    system: str
    task: str
    observation: str | None = None
    """None: as the command is, of a shell or a step with a reward."""
    format_error: str = FORMAT_ERROR

    def changed_by(self, config: PromptsConfig) -> Self:
        """With the texts that are set there."""
        given = {field.name: getattr(config, field.name) for field in fields(self)}
        return replace(self, **{name: text for name, text in given.items() if text is not None})

    def opening(
        self,
        task: Task,
        config: AgentConfig,
        tools: Sequence[ToolSpec] = (),
        tags: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[Message, Message]:
        """The first two messages of a rollout of `task`."""
        names = _names_of(task, config, tools, tags)
        return (
            {"role": "system", "content": render(self.system, **names)},
            {"role": "user", "content": render(self.task, **names)},
        )

    def observed(self, execution: Execution, config: AgentConfig, *, turns_left: int | None) -> str:
        """The message after a command; `turns_left` None leaves the reminder out."""
        of_shell = execution.reward is None
        return render_observation(
            execution.returncode,
            execution.output,
            timed_out=execution.timed_out,
            timeout_s=config.command_timeout_s,
            limit_chars=config.observation_chars,
            turns_left=turns_left,
            template=self.observation or (OBSERVATION if of_shell else ACTED),
        )

    def refused(self, num_found: int, *, cut_off: bool, reason: str = "") -> str:
        """The message after a reply that breaks the agent's rules."""
        return render_format_error(
            num_found, cut_off=cut_off, reason=reason, template=self.format_error
        )


def check_prompts(where: str, config: PromptsConfig) -> None:
    """Fill the texts that are set with examples. Raises ConfigError naming `where` and a field."""
    opening = {
        "issue": "An issue.",
        "workdir": "/testbed",
        "task_id": "task-1",
        "metadata": {},
        "step_limit": 20,
        "timeout_s": "60",
        "tools": [{"name": "bash", "description": "Run a command.", "takes": "a command"}],
        "tags": ReactConfig().tags,
    }
    observation = {
        "returncode": 0,
        "output": "text\n",
        "num_elided": 0,
        "head": "",
        "tail": "",
        "timed_out": False,
        "timeout_s": "60",
        "turns_left": 3,
    }
    cut = observation | {"output": "", "num_elided": 5, "head": "head", "tail": "tail\n"}
    killed = observation | {"returncode": -1, "timed_out": True, "turns_left": None}
    examples = {
        "system": [opening],
        "task": [opening],
        "observation": [observation, cut, killed],
        "format_error": [
            {"num_found": 2, "reason": "", "cut_off": False},
            {"num_found": 1, "reason": "a quote is open", "cut_off": False},
            {"num_found": 0, "reason": "", "cut_off": True},
        ],
    }
    for field, all_names in examples.items():
        source: str | None = getattr(config, field)
        for names in all_names:
            if source is not None:
                check_template(f"{where}.{field}", source, **names)


def _names_of(
    task: Task, config: AgentConfig, tools: Sequence[ToolSpec], tags: Mapping[str, str]
) -> dict[str, object]:
    return {
        "issue": task.issue,
        "workdir": task.workdir if isinstance(task, SweTask) else "",
        "task_id": task.id,
        "metadata": dict(task.metadata),
        "step_limit": config.step_limit,
        "timeout_s": f"{config.command_timeout_s:g}",
        "tools": [
            {"name": tool.name, "description": tool.description, "takes": _taken_by(tool)}
            for tool in tools
        ],
        "tags": dict(tags),
    }


def _taken_by(tool: ToolSpec) -> str:
    """The arguments of a tool in words."""
    properties = tool.parameters.get("properties", {})
    if not properties:
        return "nothing"
    schema = json.dumps(properties, ensure_ascii=False)
    if (only := only_text(tool)) is not None and len(properties) == 1:
        return f"the {only} as it is"
    return f"a JSON object with {schema}"
