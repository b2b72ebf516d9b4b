"""Claude Code: messages, streaming, sub-agents."""

from mainspring.programs.context_need import ContextNeed
from mainspring.programs.estimate import BYTES_PER_TOKEN
from mainspring.programs.matching import Noise
from mainspring.programs.profile import KEY, MODEL_NAME, MODEL_URL, Ask, Launch
from mainspring.programs.profiles.client import BY_INPUT, PLACE, Client

FEW_TOOLS = 'agent.options.tools = ["Bash", "Edit", "Read", "Write"]'
BARE = "agent.options.bare = true"


class ClaudeCode(Client):
    name = "claude-code"
    options = ("tools", "bare", "append_system_prompt")
    """`tools`: those that are offered, as ["Bash", "Edit", "Read"]; `bare`: without the long system
    prompt. Both make prompts short."""
    noise = Noise((r"agentId: [0-9a-zA-Z-]+", r"(?s)<usage>.*?</usage>"))
    """In results of sub-agents."""

    @property
    def context_need(self) -> ContextNeed:
        # Measured: 18,842 tokens with all 24 tools, 3,032 with Bash, Edit, Read and Write, 5,227
        # with four more, 935 when bare. It compacts at max_context - reply - 13,000, of a reply at
        # most 20,000.
        first, remedy = 18_900, f"set {FEW_TOOLS} or {BARE}"
        if self.flag("bare"):
            first, remedy = 1_000, ""
        elif tools := self.words("tools"):
            first, remedy = 1_600 + 450 * len(tools), f"set {BARE}"
        first += sum(map(len, self.words("append_system_prompt"))) // BYTES_PER_TOKEN
        return ContextNeed(
            first,
            reserve=13_000,
            max_reply=20_000,
            remedy=remedy,
            is_measured=self._is_measured,
        )

    def launch(self, ask: Ask) -> Launch:
        command = [self.program("claude"), "-p", "--model", MODEL_NAME]
        command += ["--permission-mode", "bypassPermissions", "--output-format", "json"]
        if self.flag("bare"):
            command.append("--bare")
        if tools := self.words("tools"):
            command += ["--tools", ",".join(tools)]
        for text in self.words("append_system_prompt"):
            command += ["--append-system-prompt", text]
        environment = {
            "ANTHROPIC_BASE_URL": MODEL_URL,
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL_NAME,
            "IS_SANDBOX": "1",
            "CLAUDE_CONFIG_DIR": f"{PLACE}/claude",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(ask.max_new_tokens),
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(ask.max_context),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(ask.max_context),
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
        }
        return self.start(ask, command, environment, {}, told_by=BY_INPUT)
