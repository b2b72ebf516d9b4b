"""A judge that is a script: a command is useful that reads a module of the issue, or repairs it.

It sees the bundled tasks' issue, the commands before with their outputs, and the command to judge.
It knows what each bundled function looks like (`bundled.templates`), as a rule that compares
commands with a task's true fix would. A vote is 1 for a useful command, else 0.
"""

import re

from bundled.templates import PLACEHOLDERS, TRAIN_TEMPLATES, FunctionTemplate
from mainspring.config.agents.judges import JudgeConfig
from mainspring.ids import RolloutId

ISSUE = re.compile(r"`\w+` in (?P<module>\S+) should return (?P<description>.*)\.")
SED = re.compile(
    r"sed -i 's/(?P<old>(?:[^/\\]|\\.)*)/(?P<new>(?:[^/\\]|\\.)*)/' (?P<module>\S+\.py)"
)
NAMES = {"fn": r"\w+"} | {name: f"(?:{'|'.join(words)})" for name, words in PLACEHOLDERS.items()}


class Useful:
    def __init__(self, config: JudgeConfig) -> None:
        pass

    async def vote(self, prompt: str, rollout: RolloutId, number: int) -> str:
        issue, before, command = prompt.split("\n=====\n")
        return "1" if is_useful(issue, before, command.strip()) else "0"

    async def aclose(self) -> None:
        pass


def is_useful(issue: str, before: str, command: str) -> bool:
    """`before`: the commands so far, each with its output after it."""
    for told in ISSUE.finditer(issue):
        reads = f"cat {told['module']}"
        if command == reads:
            return True
        edit = SED.fullmatch(command)
        template = template_of(told["description"])
        if edit is None or edit["module"] != told["module"] or template is None:
            continue
        _, was_read, after = before.rpartition(f"{reads}\n")
        old, new = (re.sub(r"\\(.)", r"\1", edit[name]) for name in ("old", "new"))
        right = template.code.rstrip("\n").split("\n")
        lines = [line.replace(old, new, 1) for line in after.split("\n")[: len(right)]]
        return bool(was_read) and len(lines) == len(right) and all(map(is_line, right, lines))
    return False


def template_of(description: str) -> FunctionTemplate | None:
    for template in TRAIN_TEMPLATES:
        if is_line(template.description, description):
            return template
    return None


def is_line(form: str, line: str) -> bool:
    """Whether a line is the form with some of the names that its placeholders may become."""
    parts = re.split(r"\{(\w+)\}", form)
    pattern = "".join(
        NAMES[part] if place % 2 else re.escape(part) for place, part in enumerate(parts)
    )
    return re.fullmatch(pattern, line) is not None
