"""Reading a reply: a THOUGHT in free text, then exactly one ```bash block with one command.

Pure. What a model thinks between <think> and </think> is no part of its reply. Imported by agents
that write bash blocks.
"""

import re

from mainspring.agents.protocol import Command, FormatError

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


def parse_bash_block(text: str) -> Command | FormatError:
    blocks: list[str] = []
    # bash cannot be handed a NUL, and a model may sample one; some end their lines with CR LF.
    for piece in _PIECES.finditer(text.replace("\0", "").replace("\r\n", "\n")):
        if piece["end"]:
            blocks.clear()  # the chat template opened this thought, in the prompt
        elif piece["command"] is not None:
            blocks.append(piece["command"].strip())
    if blocks == [""]:
        return FormatError(0)
    if len(blocks) != 1:
        return FormatError(len(blocks))
    return Command(blocks[0])
