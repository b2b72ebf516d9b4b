"""opencode: chat completions, streaming, a title, compaction."""

import json

from mainspring.programs.context_need import ContextNeed
from mainspring.programs.profile import KEY, MODEL_NAME, MODEL_URL, Ask, Launch
from mainspring.programs.profiles.client import BY_INPUT, PLACE, Client

_CONFIG = f"{PLACE}/opencode.json"


class OpenCode(Client):
    name = "opencode"
    need = ContextNeed(7_300)
    """It compacts at max_context - max_new_tokens."""

    def launch(self, ask: Ask) -> Launch:
        limit = {"context": ask.max_context, "output": ask.max_new_tokens}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "gateway",
            "options": {"baseURL": f"{MODEL_URL}/v1", "apiKey": KEY},
            "models": {MODEL_NAME: {"name": MODEL_NAME, "limit": limit}},
        }
        config = {
            "provider": {"gateway": provider},
            "model": f"gateway/{MODEL_NAME}",
            "small_model": f"gateway/{MODEL_NAME}",
            "autoupdate": False,
            "share": "disabled",
            "permission": {"edit": "allow", "bash": "allow", "webfetch": "deny"},
        }
        environment = {
            "OPENCODE_CONFIG": _CONFIG,
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            **{f"XDG_{kind}_HOME": f"{PLACE}/{kind.lower()}" for kind in _KINDS},
        }
        command = [self.program("opencode"), "run", "--model", f"gateway/{MODEL_NAME}"]
        files = {_CONFIG: json.dumps(config)}
        return self.start(ask, command, environment, files, told_by=BY_INPUT)


_KINDS = ("CACHE", "CONFIG", "DATA", "STATE")
