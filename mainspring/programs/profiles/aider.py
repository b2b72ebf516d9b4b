"""aider: chat completions, streaming, no tools: its edits are text."""

import json

from mainspring.programs.context_need import ContextNeed
from mainspring.programs.profile import KEY, MODEL_NAME, MODEL_URL, Ask, Launch
from mainspring.programs.profiles.client import PLACE, TASK, Client

_MODEL = f"openai/{MODEL_NAME}"
_TIDY = "trap 'rm -rf .aider.tags.cache.v*' EXIT"
"""It keeps a cache in the working tree, which is no part of its patch."""
_METADATA = f"{PLACE}/aider-model.json"


class Aider(Client):
    name = "aider"
    options = ("files", "edit_format")
    """`files`: those it begins with, from the repository's root; else it asks for what it needs."""
    offers_tools = False
    need = ContextNeed(3_200, compacts=False)
    """2,100, and the shortest map of a repository; files come on top."""
    shaping = ("edit_format",)

    def launch(self, ask: Ask) -> Launch:
        facts = {
            "max_input_tokens": ask.max_context,
            "max_output_tokens": ask.max_new_tokens,
            "litellm_provider": "openai",
            "mode": "chat",
        }
        command = [self.program("aider"), "--model", _MODEL, "--model-metadata-file", _METADATA]
        command += ["--message-file", TASK, "--yes-always", "--no-auto-commits", "--no-gitignore"]
        command += ["--no-check-update", "--analytics-disable", "--no-show-release-notes"]
        command += ["--no-show-model-warnings", "--no-suggest-shell-commands", "--no-pretty"]
        command += ["--input-history-file", f"{PLACE}/aider.input"]
        command += ["--chat-history-file", f"{PLACE}/aider.chat"]
        command += ["--edit-format", *(self.words("edit_format") or ["diff"])]
        environment = {"OPENAI_API_BASE": f"{MODEL_URL}/v1", "OPENAI_API_KEY": KEY}
        files = {_METADATA: json.dumps({_MODEL: facts})}
        return self.start(
            ask, [*command, *self.words("files")], environment, files, told_by="", before=[_TIDY]
        )
