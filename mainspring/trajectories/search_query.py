"""The query of a search over what agents did.

    ModuleNotFoundError "no module named" -pip part:output exit:1 version:>=10

Words, phrases in quotes and conditions; all must hold, and none that has a minus before it. A word
that ends in * matches every word that begins so. Only letters and digits count: a.py is the phrase
"a py", in what is searched as well (`words_of`). Pure: `infra.db.reading.search_hits` asks the
store.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from mainspring.errors import UsageError
from mainspring.status import StopReason, Verdict

_TERM = re.compile(
    r'(?P<not>-(?!-))?(?:(?P<key>[A-Za-z_]+):)?(?:"(?P<quoted>[^"]*)"|(?P<bare>\S+))'
)
_NUMBER = re.compile(r"(?P<op>>=|<=|!=|>|<|=|)(?P<number>-?\d{1,9})")
_NO_WORD = re.compile(r"[\W_]+")
MAX_CHARS = 500
"""Length of a query."""
MAX_TERMS = 20
"""Words, phrases and conditions of a query."""
EXAMPLE = 'for example: ModuleNotFoundError -pip part:output exit:1 version:>=10 "no module named"'


class SearchPart(StrEnum):
    """A part of a rollout that is searched."""

    THOUGHT = "thought"
    """Reply of the policy, with its reasoning."""
    COMMAND = "command"
    """Command of a turn, or a program's tool call."""
    OUTPUT = "output"
    """Output of a command, or what a program's request adds to the conversation."""
    PATCH = "patch"
    """Patch as it was graded."""
    TESTS = "tests"
    """Output of the tests, and the names of those that failed."""


class SearchKey(StrEnum):
    """The name of a condition."""

    PART = "part"
    """Part of the rollout."""
    EXIT = "exit"
    """Exit code of the command."""
    VERDICT = "verdict"
    """Result of the grading."""
    STOP = "stop"
    """Reason why the rollout ended."""
    VERSION = "version"
    """Policy version of its group."""
    STEP = "step"
    """Training step that took its group."""
    CAMPAIGN = "campaign"
    """Name of the campaign or other run."""
    TASK = "task"
    """Part of the task's id."""
    LABEL = "label"
    """Label that a person gave to the rollout."""


_NUMBERS = frozenset({SearchKey.EXIT, SearchKey.VERSION, SearchKey.STEP})
_MEMBERS: dict[SearchKey, type[StrEnum]] = {
    SearchKey.PART: SearchPart,
    SearchKey.VERDICT: Verdict,
    SearchKey.STOP: StopReason,
}


@dataclass(frozen=True, slots=True)
class Words:
    """A word, or several that stand beside each other."""

    text: str
    """As `words_of` gives it."""
    is_negated: bool = False
    is_beginning: bool = False
    """Its last word is only a beginning."""


@dataclass(frozen=True, slots=True)
class SearchCondition:
    key: SearchKey
    op: str
    """=, !=, <, <=, > or >=."""
    value: str | int


@dataclass(frozen=True, slots=True)
class SearchQuery:
    words: tuple[Words, ...] = ()
    conditions: tuple[SearchCondition, ...] = ()

    @property
    def wanted(self) -> Sequence[Words]:
        return [each for each in self.words if not each.is_negated]


def words_of(text: str) -> str:
    """The words of a text, with a space between."""
    return _NO_WORD.sub(" ", text).strip().lower()


def parse(text: str) -> SearchQuery:
    """Raises UsageError that names what is wrong."""
    if len(text) > MAX_CHARS:
        raise UsageError(
            f"the query has {len(text):,} characters, and may have {MAX_CHARS}",
            remedy="search for a few words of it",
        )
    if text.count('"') % 2:
        raise UsageError("the query has a quote without its partner", remedy=f"write {EXAMPLE}")
    words: list[Words] = []
    conditions: list[SearchCondition] = []
    for term in _TERM.finditer(text):
        is_negated = bool(term["not"])
        quoted, bare = term["quoted"], term["bare"] or ""
        if term["key"] and not bare.startswith(":"):
            value = bare if quoted is None else quoted
            conditions.append(_condition(term["key"], value, is_negated))
            continue
        written = f"{term['key']}:{bare}" if term["key"] else bare if quoted is None else quoted
        if not words_of(written):
            raise UsageError(
                f"{term[0]!r} has no letter and no digit",
                remedy="only words are searched: leave it out, or add a word that stands beside it",
            )
        is_beginning = quoted is None and written.endswith("*")
        words.append(Words(words_of(written), is_negated, is_beginning))
    if not words and not conditions:
        raise UsageError("the query is empty", remedy=f"write {EXAMPLE}")
    if len(words) + len(conditions) > MAX_TERMS:
        raise UsageError(
            f"the query has {len(words) + len(conditions)} words and conditions, and may have "
            f"{MAX_TERMS}",
            remedy="put words that stand beside each other in quotes: a phrase counts as one",
        )
    return SearchQuery(tuple(words), tuple(conditions))


def _condition(name: str, value: str, is_negated: bool) -> SearchCondition:
    if name.lower() not in list(SearchKey):
        near = _nearest(name.lower(), list(SearchKey))
        raise UsageError(
            f"{name!r} is no condition of a search{near}",
            remedy=f"the conditions are {', '.join(SearchKey)}; put text with a colon in quotes",
        )
    key = SearchKey(name.lower())
    if key in _NUMBERS:
        return _number(key, value, is_negated)
    if members := _MEMBERS.get(key):
        value = value.lower()
        if value not in list(members):
            raise UsageError(
                f"{value!r} is no value of {key}{_nearest(value, list(members))}",
                remedy=f"one of {', '.join(members)}",
            )
    if not value:
        raise UsageError(f"{key}: has no value", remedy=f"write {EXAMPLE}")
    return SearchCondition(key, "!=" if is_negated else "=", value)


def _number(key: SearchKey, value: str, is_negated: bool) -> SearchCondition:
    found = _NUMBER.fullmatch(value)
    if found is None:
        raise UsageError(
            f"{key}:{value} has no number", remedy=f"write {key}:1, {key}:>=1 or {key}:!=0"
        )
    op = found["op"] or "="
    if is_negated:
        opposites = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
        op = opposites[op]
    return SearchCondition(key, op, int(found["number"]))


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, 1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else ""


def snippet(text: str, words: Sequence[Words], width: int = 200) -> tuple[str, str, str]:
    """The text before the first of `words` that is found, that place, and the text after it; all of
    one line of about `width` characters. The beginning of the text where none is found."""
    start = end = 0
    for each in words:
        pattern = r"[\W_]+".join(map(re.escape, each.text.split()))
        closed = "" if each.is_beginning else r"(?![^\W_])"
        found = re.search(rf"(?<![^\W_]){pattern}{closed}", text, re.IGNORECASE)
        if found:
            start, end = found.span()
            break
    room = max(0, width - (end - start))
    first = max(0, start - room // 3)
    last = min(len(text), first + width if end - start < width else end)
    before, mark, after = (
        re.sub(r"\s+", " ", part) for part in (text[first:start], text[start:end], text[end:last])
    )
    return ("..." if first else "") + before, mark, after + ("..." if last < len(text) else "")
