"""A judge that is a script: it votes for a turn that reads the module, or edits a wrong line of it.

It knows what each bundled function looks like (`bundled.templates`), as a rule that compares turns
with a task's true fix would. Whether the edit is right is left to the tests.
"""

import re

from bundled.templates import PLACEHOLDERS, TRAIN_TEMPLATES, FunctionTemplate
from mainspring.config.agents.judges import JudgeConfig
from mainspring.ids import RolloutId

ISSUE = re.compile(r"`(?P<fn>\w+)` in (?P<module>\S+) should return (?P<description>.*)\.")
SED = re.compile(r"sed -i 's/(?P<old>(?:[^/\\]|\\.)*)/(?P<new>(?:[^/\\]|\\.)*)/'")
NAMES = {"fn": r"\w+"} | {name: f"(?:{'|'.join(words)})" for name, words in PLACEHOLDERS.items()}


class Useful:
    def __init__(self, config: JudgeConfig) -> None:
        pass

    async def vote(self, prompt: str, rollout: RolloutId, number: int) -> str:
        issue, seen, command = prompt.split("\n=====\n")
        return "1" if is_useful(issue, seen.strip("\n"), command) else "0"

    async def aclose(self) -> None:
        pass


def is_useful(issue: str, seen: str, command: str) -> bool:
    """`seen`: the outputs before the command."""
    told = ISSUE.search(issue)
    if told is None:
        return False
    if not seen:
        return told["module"] in command
    edit = SED.search(command)
    template = template_of(told["description"])
    if edit is None or template is None:
        return False
    old, new = (re.sub(r"\\(.)", r"\1", edit[name]) for name in ("old", "new"))
    lines, right = seen.split("\n"), template.code.rstrip("\n").split("\n")
    return len(lines) == len(right) and any(
        old in line and line.replace(old, new, 1) != line and not is_line(form, line)
        for line, form in zip(lines, right, strict=True)
    )


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
