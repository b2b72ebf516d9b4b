"""A program of your own: any command that asks an OpenAI, Anthropic or Gemini API at MODEL_URL."""

from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.programs.context_need import ContextNeed
from mainspring.programs.matching import SILENT, Noise
from mainspring.programs.profile import MODEL_NAME, MODEL_URL, TO_MODEL, Ask, Launch


class CommandProfile:
    bundle: str | None = None
    context_need: ContextNeed | None = None
    noise: Noise = SILENT
    offers_tools = False

    def __init__(self, config: AgentConfig) -> None:
        command = config.options.get("command")
        if not isinstance(command, str) or not command.strip():
            raise ConfigError(
                'agent.kind = "command" has no command',
                remedy="set options.command in [agent] to what bash is to run in the repository",
            )
        self._command = command

    def launch(self, ask: Ask) -> Launch:
        return Launch(
            command=self._command,
            environment={
                "TASK": ask.instruction,
                "ISSUE": ask.issue,
                "MODEL_URL": MODEL_URL,
                "MODEL_NAME": MODEL_NAME,
                "MAX_CONTEXT": str(ask.max_context),
                "MAX_NEW_TOKENS": str(ask.max_new_tokens),
                **TO_MODEL,
            },
        )
