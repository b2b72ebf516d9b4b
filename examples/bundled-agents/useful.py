"""A judge that is a script: it scores how far a turn comes, so that failed tries differ.

A turn that reads the module has 1. An edit has 0 if no line has its text, 0.3 if one has, 0.6 if
that line is a wrong one, and 1 if all lines are right then. It knows what each bundled function
looks like (`bundled.templates`), as a rule that compares turns with a task's true fix would.
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
        score = usefulness(issue, seen.strip("\n"), command)
        return f"{score:g}"

    async def aclose(self) -> None:
        pass


def usefulness(issue: str, seen: str, command: str) -> float:
    """`seen`: the outputs before the command."""
    told = ISSUE.search(issue)
    if told is None:
        return 0.0
    if not seen:
        return 1.0 if told["module"] in command else 0.0
    edit = SED.search(command)
    template = template_of(told["description"])
    if edit is None or template is None or told["module"] not in command:
        return 0.0
    old, new = (re.sub(r"\\(.)", r"\1", edit[name]) for name in ("old", "new"))
    lines, right = seen.split("\n"), template.code.rstrip("\n").split("\n")
    edited = [line.replace(old, new, 1) for line in lines]
    changed = [number for number, line in enumerate(lines) if edited[number] != line]
    if not changed:
        return 0.0
    if len(lines) != len(right):
        return 0.3
    if all(map(is_line, right, edited)):
        return 1.0
    return 0.6 if any(not is_line(right[number], lines[number]) for number in changed) else 0.3


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
