"""Agents on a Python package: the bundle has the package, a script is the agent.

By default the script is a small agent with a shell, a file beside this one; `options.script` names
another.
"""

from typing import ClassVar

from mainspring.artifacts.program_files import program
from mainspring.programs.context_need import ContextNeed
from mainspring.programs.profile import KEY, MODEL_NAME, MODEL_URL, Ask, Launch
from mainspring.programs.profiles.client import PLACE, TASK, Client

_DRIVER = f"{PLACE}/agent.py"


class _PythonAgents(Client):
    options = ("script",)
    """`script`: path of a Python program in the sandbox."""
    driver: ClassVar[str]
    """File beside this one."""

    @property
    def context_need(self) -> ContextNeed | None:
        return None if self.words("script") else super().context_need

    def launch(self, ask: Ask) -> Launch:
        own = self.words("script")
        files = {} if own else {_DRIVER: program(__file__, self.driver)}
        environment = {
            "TASK_FILE": TASK,
            "MODEL_NAME": MODEL_NAME,
            "MODEL_URL": MODEL_URL,
            "MAX_CONTEXT": str(ask.max_context),
            "MAX_NEW_TOKENS": str(ask.max_new_tokens),
            "OPENAI_BASE_URL": f"{MODEL_URL}/v1",
            "OPENAI_API_KEY": KEY,
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "LANGSMITH_TRACING": "false",
            "OPENHANDS_SUPPRESS_BANNER": "1",
            # Below 16,384 tokens OpenHands would not start.
            "ALLOW_SHORT_CONTEXT_WINDOWS": "true",
        }
        command = [self.program("python-agents"), *(own or [_DRIVER])]
        return self.start(ask, command, environment, files, told_by="")


class OpenAiAgents(_PythonAgents):
    name = "openai-agents"
    driver = "openai_agents_driver.py"
    need = ContextNeed(120, compacts=False)


class LangGraph(_PythonAgents):
    name = "langgraph"
    driver = "langgraph_driver.py"
    need = ContextNeed(100, compacts=False)


class OpenHands(_PythonAgents):
    name = "openhands"
    driver = "openhands_driver.py"
    need = ContextNeed(8_000, reserve=2_000)
    """After a summary its prompt has 1,800 tokens more than the first one."""
