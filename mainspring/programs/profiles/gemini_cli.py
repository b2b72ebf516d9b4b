"""gemini-cli: Gemini's generateContent, streaming."""

import json

from mainspring.programs.context_need import ContextNeed
from mainspring.programs.profile import KEY, MODEL_NAME, MODEL_URL, Ask, Launch
from mainspring.programs.profiles.client import BY_ARGUMENT, PLACE, Client

_SETTINGS = f"{PLACE}/gemini.json"
_IN_PLACE = f'mkdir -p "$HOME/.gemini" && cp {_SETTINGS} "$HOME/.gemini/settings.json"'
"""It reads them nowhere else."""


class GeminiCli(Client):
    name = "gemini-cli"
    need = ContextNeed(12_400, compacts=False)
    """It takes its context for one of a million tokens."""

    def launch(self, ask: Ask) -> Launch:
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        }
        environment = {
            "GOOGLE_GEMINI_BASE_URL": MODEL_URL,
            "GEMINI_API_KEY": KEY,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        command = [self.program("gemini"), "-m", MODEL_NAME, "--yolo", "-p"]
        files = {_SETTINGS: json.dumps(settings)}
        return self.start(ask, command, environment, files, told_by=BY_ARGUMENT, before=[_IN_PLACE])
