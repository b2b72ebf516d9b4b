"""Reading a reply: a THOUGHT in free text, then exactly one ```bash block with one command.

Pure. A reply that breaks the rule is a FormatError value, never an exception: it is told to the
model and costs it a turn. Anyone may import it.
"""

import re
from dataclasses import dataclass

SUBMIT_SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

# Fences stand at the start of a line, so back-quotes inside a command do not end its block.
_BASH_BLOCK = re.compile(r"^```bash[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


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
    # bash cannot be handed a NUL, and a model may sample one.
    blocks = [block.strip() for block in _BASH_BLOCK.findall(text.replace("\0", ""))]
    if blocks == [""]:
        return FormatError(num_blocks=0)
    if len(blocks) != 1:
        return FormatError(num_blocks=len(blocks))
    return Command(blocks[0], is_submit=SUBMIT_SENTINEL in blocks[0])
