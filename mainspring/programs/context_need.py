"""How much context a client takes before it can work, and how much it leaves for the work.

Every known client has a first prompt of a known size; one that writes summaries of its history does
so long before the context is full. Where little is left between both, it writes one after every
turn, or ends by itself: that would be scored as the policy's failure. The profiles beside this file
have the numbers. They were measured with the versions of recipes.toml, through model port and
gateway, at 4 bytes a token; another tokenizer may differ by a tenth. Pure.
"""

from dataclasses import dataclass
from math import ceil

from mainspring.errors import ConfigError

LEAST_ROOM = 4096
"""For one turn and the longest output that a client shows of a command. Claude Code gives up after
three summaries in a row with one turn between them: at 3,500 tokens of room it did so, at 4,400 it
completed its task. Codex never came further at 1,700."""
LEAST_UNTIL_FULL = 1024
"""Where the history is never shortened: a turn or two before the context is full."""
SMALL_ROOM = 12_000
SMALL_UNTIL_FULL = 4096


@dataclass(frozen=True, slots=True)
class ContextNeed:
    first_prompt: int
    """Tokens of instructions and tools, and of a short task."""
    compacts: bool = True
    """It replaces its history by a summary; else a full context ends its rollout."""
    share: float = 1.0
    """Share of the context beside a reply: above it, the history is replaced."""
    reserve: int = 0
    """Tokens that it leaves free beside a reply and that share."""
    max_reply: int | None = None
    """Tokens that it sets aside for a reply, at most."""
    remedy: str = ""
    """Way to make the first prompt shorter."""
    is_measured: bool = True
    """False: options or version change the first prompt, so the number is a guess."""

    def room(self, max_context: int, max_new_tokens: int) -> int:
        """Tokens for the work: of all of it, or from one summary to the next."""
        return self._limit(max_context, max_new_tokens) - self.first_prompt

    def smallest(self, max_new_tokens: int) -> int:
        """The smallest `policy.max_context` that it can work with."""
        needed = self.first_prompt + self.reserve + self._least
        return ceil(needed / self.share) + self._reply(max_new_tokens)

    def check(self, kind: str, max_context: int, max_new_tokens: int) -> None:
        """Raises ConfigError where it could not work."""
        if self.is_measured and self.room(max_context, max_new_tokens) < self._least:
            why = f"its first prompt has about {self.first_prompt} tokens"
            if self.compacts:
                limit = max(0, self._limit(max_context, max_new_tokens))
                why += f", and above {limit} it replaces its history by a summary"
            raise ConfigError(
                f"policy.max_context = {max_context} is too small for {kind!r}, which needs "
                f"{self.smallest(max_new_tokens)} or more: {why}",
                remedy=self._ways(),
            )

    def warning(self, kind: str, max_context: int, max_new_tokens: int) -> tuple[str, str] | None:
        """The narrow limit, and what to do; None: nothing is narrow."""
        room = self.room(max_context, max_new_tokens)
        if room >= (SMALL_ROOM if self.compacts else SMALL_UNTIL_FULL):
            return None
        left = f"about {max(0, room)} tokens of work"
        then = f"it replaces its history by a summary after {left}"
        if not self.compacts:
            then = f"its context is full after {left}"
        guess = "" if self.is_measured else ", unless its options shorten its prompt"
        return f"{kind} with policy.max_context = {max_context}: {then}{guess}", self._ways()

    @property
    def _least(self) -> int:
        return LEAST_ROOM if self.compacts else LEAST_UNTIL_FULL

    def _limit(self, max_context: int, max_new_tokens: int) -> int:
        """Most tokens of a prompt."""
        return int(self.share * (max_context - self._reply(max_new_tokens))) - self.reserve

    def _reply(self, max_new_tokens: int) -> int:
        # A reply takes what is left of the context; who compacts sets a whole one aside.
        return min(max_new_tokens, self.max_reply or max_new_tokens) if self.compacts else 0

    def _ways(self) -> str:
        ways = [self.remedy] if self.remedy else []
        ways.append("raise policy.max_context")
        return ", or ".join([*ways, "lower policy.max_new_tokens"] if self.compacts else ways)
