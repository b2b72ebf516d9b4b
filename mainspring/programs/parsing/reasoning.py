"""Reasoning apart from what is told: `<think>...</think>` at the beginning of a reply. Pure.

Where the template opened the block itself, only the closing tag is in the reply. A tag in the
middle of a text or of a call is no block: programs are told of tags as well.
"""

OPEN, CLOSE = "<think>", "</think>"
CALL_MARKS = ("<tool_call>", "<function=", '{"name"')
"""After one of these a closing tag belongs to a call's arguments."""


def split_reasoning(text: str) -> tuple[str, str]:
    """Reasoning and the rest; a reply without reasoning is returned as it is."""
    stripped = text.lstrip()
    if stripped.startswith(OPEN):
        before, _, after = stripped[len(OPEN) :].partition(CLOSE)
        return before.strip(), after.strip()
    before, closed, after = text.partition(CLOSE)
    if not closed or any(mark in before for mark in (OPEN, *CALL_MARKS)):
        return "", text
    return before.strip(), after.strip()
