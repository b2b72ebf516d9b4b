"""Codex: responses, streaming."""

import json

from mainspring.programs.context_need import ContextNeed
from mainspring.programs.matching import Noise
from mainspring.programs.profile import KEY, MODEL_NAME, MODEL_URL, Ask, Launch
from mainspring.programs.profiles.client import BY_INPUT, PLACE, Client

_HOME = f"{PLACE}/codex"
_COMPACT_SHARE = 0.9
"""Share of the context beside a reply: what a command prints comes on top of the count."""
_PATIENCE = {
    "request_max_retries": 100,
    "stream_max_retries": 100,
    "stream_idle_timeout_ms": 3_600_000,
}
"""The most that it takes; by default it gives up after half a minute without an answer."""


class Codex(Client):
    name = "codex"
    options = ("config",)
    """`config`: what follows -c, in order."""
    need = ContextNeed(6_800, share=_COMPACT_SHARE)
    shaping = ("config",)
    noise = Noise((r"Chunk ID: [0-9a-fA-F]+", r"Wall time: [0-9.]+ seconds"))

    def launch(self, ask: Ask) -> Launch:
        command = [self.program("codex"), "exec", "--json", "--skip-git-repo-check"]
        command.append("--dangerously-bypass-approvals-and-sandbox")
        for setting in self.words("config"):
            command += ["-c", setting]
        compact = int(_COMPACT_SHARE * max(1, ask.max_context - ask.max_new_tokens))
        settings = {
            "model": MODEL_NAME,
            "model_provider": "gateway",
            "model_context_window": ask.max_context,
            "model_auto_compact_token_limit": max(1, compact),
            "check_for_update_on_startup": False,
            "web_search": "disabled",
        }
        provider = {
            "name": "gateway",
            "base_url": f"{MODEL_URL}/v1",
            "env_key": "OPENAI_API_KEY",
            "wire_api": "responses",
            **_PATIENCE,
        }
        lines = [
            *_lines(settings),
            *("[analytics]", "enabled = false"),
            *("[model_providers.gateway]", *_lines(provider)),
        ]
        environment = {"CODEX_HOME": _HOME, "OPENAI_API_KEY": KEY}
        files = {f"{_HOME}/config.toml": "\n".join([*lines, ""])}
        return self.start(ask, [*command, "-"], environment, files, told_by=BY_INPUT)


def _lines(table: dict[str, str | int | bool]) -> list[str]:
    """Strings, numbers and truth values are written alike in TOML and JSON."""
    return [f"{key} = {json.dumps(value)}" for key, value in table.items()]
