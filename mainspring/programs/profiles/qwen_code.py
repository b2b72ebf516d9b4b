"""qwen-code: chat completions, streaming."""

from mainspring.programs.context_need import ContextNeed
from mainspring.programs.profile import KEY, MODEL_NAME, MODEL_URL, Ask, Launch
from mainspring.programs.profiles.client import BY_ARGUMENT, Client


class QwenCode(Client):
    name = "qwen-code"
    need = ContextNeed(19_400, compacts=False)
    """It takes its context for a larger one, and does not shorten its history in time."""

    def launch(self, ask: Ask) -> Launch:
        environment = {
            "OPENAI_BASE_URL": f"{MODEL_URL}/v1",
            "OPENAI_API_KEY": KEY,
            "OPENAI_MODEL": MODEL_NAME,
            "QWEN_CODE_TELEMETRY_ENABLED": "false",
        }
        command = [self.program("qwen"), "--yolo", "--auth-type", "openai", "-p"]
        return self.start(ask, command, environment, {}, told_by=BY_ARGUMENT)
