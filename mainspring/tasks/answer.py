"""Tasks that are answered with a text: the accepted answers, and when a reply gives one of them.

Invariants: the final answer of a reply is found by its marks alone (docs/tasks.md has the list),
and compared as a number where both are numbers, else as text; no reply can make the comparison slow
or raise. Pure. Imported by agents, by sources that import such tasks, and by the environment that
grades them.
"""

import re
from fractions import Fraction
from typing import Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from mainspring.errors import ConfigError
from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.task import Task

ANSWER = "answer"
"""Kind of tasks whose accepted answers are in `data`."""
SCORED_ANSWER = "scored_answer"
"""Kind of tasks that are answered as well, and that only a class of one's own can score."""
ANSWERS = "answers"
"""Field of `data` with the accepted answers."""
PROMPT = "prompt"
"""Field of `data` with the chat messages that the policy is asked, where the row has them."""
ROLES = ("system", "user", "assistant")

_NUM_BOXES = 20
"""The last ones of a reply that are looked at; one that is never closed costs a search."""
_BOXED = re.compile(r"\\f?boxed\s*\{")
_TAG, _TAG_END = "<answer>", "</answer>"
_HASHES = re.compile(r"####([^\n]*)")
_LINE = re.compile(
    r"^[^\w\n]{0,9}(?:the )?(?:final )?answer[^\w\n]{0,9}(?::|\bis\b)([^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_NUMBER = re.compile(r"([+-]?)(\d{1,60})(\.\d{0,60})?|([+-]?)(\.\d{1,60})", re.ASCII)
_RATIO = re.compile(
    r"([+-]?)(?:\\frac\{(\d{1,60})\}\{(\d{1,60})\}|(\d{1,60})/(\d{1,60}))", re.ASCII
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
_NO_MEANING = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[!,; ()\[\]$]|\$|\*\*")


class AskedMessage(TypedDict):
    """One chat message of a row."""

    role: Literal["system", "user", "assistant"]
    content: str


_MESSAGES = TypeAdapter(tuple[AskedMessage, ...])


class FoundAnswer(NamedTuple):
    answer: str
    mark: str
    """Mark that it was found by."""


def prompt_of(task: Task) -> tuple[AskedMessage, ...]:
    """The messages that the task's row asks the policy; empty where it has none. Raises
    ConfigError."""
    if not isinstance(task, OwnTask) or task.kind not in (ANSWER, SCORED_ANSWER):
        return ()
    try:
        return _MESSAGES.validate_python(task.data.get(PROMPT, []))
    except ValidationError:
        raise ConfigError(
            f"task {task.id}: data.{PROMPT} must be a list of messages, each with a role of "
            f"{', '.join(ROLES)} and a text as content",
            remedy="correct its row and import it again under another id",
        ) from None


def answers_of(task: OwnTask) -> tuple[str, ...]:
    """Raises ConfigError when the task has none."""
    answers = task.data.get(ANSWERS)
    texts = [each for each in answers if isinstance(each, str)] if isinstance(answers, list) else []
    if not texts or texts != answers or not all(map(str.strip, texts)):
        raise ConfigError(
            f"task {task.id} of the kind {ANSWER!r}: data.{ANSWERS} must be a list of the accepted "
            "answers, one text or more",
            remedy="correct its row and import it again under another id",
        )
    return tuple(texts)


def final_answer(reply: str) -> FoundAnswer:
    """The answer after the last mark in a reply; the whole reply where it has none."""
    best = (-1, FoundAnswer(reply.strip(), "the whole reply"))
    for opened in list(_BOXED.finditer(reply))[-_NUM_BOXES:]:
        if (inside := _to_brace(reply, opened.end())) is not None:
            best = max(best, (opened.start(), FoundAnswer(inside.strip(), r"\boxed")))
    end = reply.rfind(_TAG_END)
    start = -1 if end < 0 else reply.rfind(_TAG, 0, end)
    if start >= 0 and (said := reply[start + len(_TAG) : end].strip()):
        best = max(best, (start, FoundAnswer(said, _TAG)))
    for mark, form in (("####", _HASHES), ("the line of the answer", _LINE)):
        for match in form.finditer(reply):
            # A mark with nothing behind it marks no answer.
            if said := match[1].strip().strip("*: "):
                best = max(best, (match.start(), FoundAnswer(said, mark)))
    return best[1]


def is_same(given: str, accepted: str) -> bool:
    ours, theirs = _plain(given), _plain(accepted)
    if ours == theirs:
        return bool(ours)
    numbers = _number(ours), _number(theirs)
    return None not in numbers and numbers[0] == numbers[1]


def _to_brace(text: str, start: int) -> str | None:
    """From `start` to the brace that closes the one before it; None where none does."""
    depth = 1
    for match in re.finditer(r"[{}]", text[start : start + 10_000]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return text[start : start + match.start()]
    return None


def _plain(answer: str) -> str:
    """Without what is only notation: spaces, dollars, units of LaTeX, a full stop at the end."""
    plain = _NO_MEANING.sub("", answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    plain = _WRAPPED.sub(r"\1", plain).replace("\\%", "%")
    plain = "".join(plain.casefold().split()).rstrip(".").removesuffix("%")
    return _THOUSANDS.sub("", plain) if _GROUPED.fullmatch(plain) else plain


def _number(plain: str) -> Fraction | None:
    if _NUMBER.fullmatch(plain):
        return Fraction(plain.rstrip("."))
    if match := _RATIO.fullmatch(plain):
        above, below = match[2] or match[4], match[3] or match[5]
        if int(below):
            return Fraction(int(above), int(below)) * (-1 if match[1] == "-" else 1)
    return None
