"""Why a program's request has no reply, as stored with it."""

from enum import StrEnum

from mainspring.programs.request import Frozen


class RefusalKind(StrEnum):
    """Fault of a request that its dialect allows."""

    PROMPT_TOO_LONG = "prompt_too_long"
    """It leaves no room for a reply; a shorter one may."""
    UNUSABLE = "unusable"
    """It cannot be rendered for this model."""


class Refusal(Frozen):
    kind: RefusalKind
    message: str = ""
    num_tokens: int = 0
    """Tokens of the prompt, when it is too long."""
    max_tokens: int = 0
    """That prompt and reply may have together."""
