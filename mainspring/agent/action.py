"""Reading a reply: a THOUGHT in free text, then exactly one ```bash block with one command.

Pure. A reply that breaks the rule is a FormatError value, never an exception: it is told to the
model and costs it a turn. What a model thinks between <think> and </think> is no part of its reply.
The one parser: the loop, scores and exports read a reply alike. Anyone may import it.
"""

import re
from dataclasses import dataclass

SUBMIT_SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

# Fences stand at the start of a line, so back-quotes inside a command do not end its block. What
# begins first wins: a tag inside a command is text, and a block inside a thought is a draft. Prose
# may name the tag, so one that never closes opens a thought only where it begins a line.
_PIECES = re.compile(
    r"<think>.*?</think>"
    r"|^[ \t]*<think>(?:(?!</think>).)*\Z"
    r"|(?P<end></think>)"
    r"|^```bash[ \t]*\n(?P<command>.*?)^```[ \t]*$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Command:
    """The one command of a well-formed reply."""

    command: str
    is_submit: bool
    """The command prints the sentinel: the rollout ends after it."""


@dataclass(frozen=True, slots=True)
class FormatError:
    """A reply without exactly one command."""

    num_blocks: int
    """Blocks that were found; a single empty block counts as none."""


def parse_action(text: str) -> Command | FormatError:
    blocks: list[str] = []
    # bash cannot be handed a NUL, and a model may sample one; some end their lines with CR LF.
    for piece in _PIECES.finditer(text.replace("\0", "").replace("\r\n", "\n")):
        if piece["end"]:
            blocks.clear()  # the chat template opened this thought, in the prompt
        elif piece["command"] is not None:
            blocks.append(piece["command"].strip())
    if blocks == [""]:
        return FormatError(num_blocks=0)
    if len(blocks) != 1:
        return FormatError(num_blocks=len(blocks))
    return Command(blocks[0], is_submit=SUBMIT_SENTINEL in blocks[0])
