"""Reading a reply: a THOUGHT in free text, then exactly one ```bash block with one command.

Pure. What a model thinks between <think> and </think> is no part of its reply. A line of
back-quotes inside a heredoc is a line of the file that it writes, and does not end the block; where
the end is not clear nothing is run. Imported by agents that write bash blocks.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from mainspring.agents.protocol import Command, FormatError
from mainspring.agents.shell_lines import ShellLines

SUBMIT_SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

# Fences stand at the start of a line, so back-quotes inside a command do not end its block. What
# begins first wins: a tag inside a command is text, and a block inside a thought is a draft. Prose
# may name the tag, so one that never closes opens a thought only where it begins a line.
_PIECES = re.compile(
    r"<think>.*?</think>"
    r"|^[ \t]*<think>(?:(?!</think>).)*\Z"
    r"|(?P<end></think>)"
    r"|(?P<block>^```bash[ \t]*\n)",
    re.DOTALL | re.MULTILINE,
)
_CLOSING = re.compile(r"^```[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^```[^`\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Block:
    command: str
    end: int
    """Where the text after it begins."""
    doubt: str = ""
    """Why its end is not clear."""


# A reply is read when it came, when its command runs, and when the policy is told what that did.
@lru_cache(maxsize=1024)
def parse_bash_block(text: str) -> Command | FormatError:
    # bash cannot be handed a NUL, and a model may sample one; some end their lines with CR LF.
    text = text.replace("\0", "").replace("\r\n", "\n")
    blocks: list[_Block] = []
    at = 0
    while piece := _PIECES.search(text, at):
        at = piece.end()
        if piece["end"]:
            blocks.clear()  # the chat template opened this thought, in the prompt
        elif piece["block"] is not None:
            block = _block_at(text, at)
            if block is not None:
                blocks.append(block)
                at = block.end
    if len(blocks) != 1 or not blocks[0].command.strip():
        is_empty = len(blocks) == 1
        return FormatError(0 if is_empty else len(blocks))
    if blocks[0].doubt:
        return FormatError(1, blocks[0].doubt)
    return Command(blocks[0].command.strip())


def _block_at(text: str, start: int) -> _Block | None:
    """The block whose first line is at `start`; None where no line closes it."""
    if _CLOSING.search(text, start) is None:
        return None
    shell = ShellLines()
    first: _Block | None = None
    """It ends at the first line of back-quotes that does not surely close it."""
    is_within = False
    """Whether it stands in a heredoc's body: such a line has opened a block in the file that it
    writes."""
    at = start
    while at < len(text):
        end = text.find("\n", at)
        line = text[at : end if end >= 0 else len(text)]
        closes = _CLOSING.fullmatch(line) is not None
        if closes and not (shell.in_heredoc or shell.in_quote):
            return first or _Block(text[start:at], at + len(line))
        if closes and first is None:
            what = f"the heredoc {shell.delimiter}" if shell.in_heredoc else "a quote"
            first = _Block(text[start:at], at + len(line), f"a line of ``` is inside {what}")
        if shell.in_heredoc:
            if line.startswith("```bash") and is_within:
                return first  # more likely the next block than a line of the file
            is_within = not is_within if closes else is_within or bool(_FENCE.fullmatch(line))
        num_heredocs = shell.num_heredocs
        shell.add(line)
        if shell.num_heredocs < num_heredocs:
            first, is_within = None, False  # its lines were the file's
        at += len(line) + 1
    if first is None:
        return None
    rest = text[first.end :]
    # bash ends a heredoc and reports a quote at the end of the text: nothing is lost by that where
    # no text follows.
    is_clear = not rest.strip() if shell.in_heredoc else len(_FENCE.findall(rest)) % 2 == 0
    return replace(first, doubt="") if is_clear else first
