"""docs/tour.md leads from function to function: each exists, and is reached from one before it.

A function is reached from another that mentions its name, or the name that its decorator or its
class's decorator binds: an activity's reference, a workflow's name, a signal. What no mention shows
is one of DOORS, whose text must stand in the file that opens it.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = "docs/tour.md"
STOPS = [*map(str, range(1, 15)), *(f"P{number}" for number in range(1, 5))]
PARTS = ("**Decides:** ", "**Keeps:** ", "**Killed here:** ")
DOORS = {
    "mainspring/algorithms/advantages/grpo.py: grpo": (
        "mainspring/algorithms/choice.py",
        '("grpo", grpo)',
    ),
    "trainer/losses/clip.py: clip": (
        "mainspring/algorithms/choice.py",
        '("clip", "trainer.losses.clip:clip")',
    ),
    "infra/db/listening.py: _told": ("infra/db/programs/model_requests.py", "pg_notify("),
}
"""Names of a campaign file, and Postgres's NOTIFY: the file that opens the door, and its words."""
_STOP = re.compile(r"^## (P?\d+)\. .+$", re.MULTILINE)
_READ = re.compile(r"^- `([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)$", re.MULTILINE)
_FROM = re.compile(r"From stop (P?\d+), ([^.]+)\.$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_NAME = re.compile(r"`(\w+)`")


@dataclass(frozen=True, slots=True)
class Function:
    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


@dataclass(frozen=True, slots=True)
class Stop:
    number: str
    text: str

    @property
    def functions(self) -> list[Function]:
        return [
            Function(file, name)
            for file, names in _READ.findall(self.text)
            for name in _NAME.findall(names)
        ]

    @property
    def entrances(self) -> list[tuple[str, str]]:
        """Number of a stop, and the name of one of its functions."""
        return [
            (stop, name)
            for stop, names in _FROM.findall(self.text)
            for name in _NAME.findall(names)
        ]


@dataclass(frozen=True, slots=True)
class Source:
    """What all functions of one name in a file are, together."""

    mentions: frozenset[str]
    bound: frozenset[str]
    """Other names by which one of them is called."""


def stops_of(page: str) -> list[Stop]:
    begins = [*_STOP.finditer(page)]
    ends = [*(each.start() for each in begins[1:]), len(page)]
    return [
        Stop(begin[1], page[begin.start() : end]) for begin, end in zip(begins, ends, strict=True)
    ]


@cache
def sources(file: str) -> dict[str, Source]:
    if not (ROOT / file).is_file():
        return {}
    found: dict[str, Source] = {}
    tree = ast.parse((ROOT / file).read_text())
    for owner in ast.walk(tree):
        decorators = owner.decorator_list if isinstance(owner, ast.ClassDef) else []
        for node in ast.iter_child_nodes(owner):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            bound = _words(*node.decorator_list, *decorators)
            if isinstance(owner, ast.ClassDef) and node.name in ("__call__", "__init__"):
                bound |= {owner.name}
            before = found.get(node.name, Source(frozenset(), frozenset()))
            found[node.name] = Source(before.mentions | _words(*node.body), before.bound | bound)
    return found


def _words(*nodes: ast.AST) -> frozenset[str]:
    return frozenset(
        word for node in nodes for each in ast.walk(node) if (word := _word(each)) is not None
    )


def _word(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


DECORATING = frozenset({"workflow", "defn", "run", "signal", "activity", "implements", "property"})
"""Of every such function: they bind nothing."""


def is_reached(function: Function, before: list[Function]) -> bool:
    if str(function) in DOORS:
        return True
    names = {function.name} | (sources(function.file)[function.name].bound - DECORATING)
    return any(names & sources(each.file)[each.name].mentions for each in before)


def faults(page: str) -> Iterator[str]:
    stops = {stop.number: stop for stop in stops_of(page)}
    if [*stops] != STOPS:
        yield f"{PAGE}: its stops are {', '.join(stops)}, expected {', '.join(STOPS)}"
    for position, (number, stop) in enumerate(stops.items()):
        where = f"{PAGE}, stop {number}"
        for part in PARTS:
            if stop.text.count(part) != 1:
                yield f"{where} has no paragraph {part.strip()}"
        killed = stop.text.partition(PARTS[-1])[2]
        if not _TEST.search(killed):
            yield f"{where}: no test shows what happens when it is killed there"
        for file, name in _TEST.findall(stop.text):
            if name not in sources(file):
                yield f"{where}: {file} has no test {name}"
        before: list[Function] = []
        for entrance, name in stop.entrances:
            of_stop = stops[entrance].functions if entrance in stops else []
            doors = [each for each in of_stop if each.name == name]
            if not doors or [*stops].index(entrance) >= position:
                yield f"{where}: no stop {entrance} before it has a function {name}"
            before += doors
        if not stop.functions:
            yield f"{where} names no function"
        begins = number in ("1", "P1")
        if not begins and not before:
            yield f"{where} does not tell from which stop it is reached"
        for function in stop.functions:
            if function.name not in sources(function.file):
                yield f"{where}: {function.file} has no function {function.name}"
                continue
            known = [each for each in before if each.name in sources(each.file)]
            if not (begins and not known) and not is_reached(function, known):
                yield (
                    f"{where}: none of {', '.join(map(str, known))} mentions {function}, nor what "
                    "its decorator binds; correct the order, or add what lies between"
                )
            before.append(function)


def test_the_tour_is_a_chain_of_functions_that_exist() -> None:
    found = [*faults((ROOT / PAGE).read_text())]
    assert not found, "\n".join(found)


def test_every_door_is_on_the_page_and_open() -> None:
    shown = {str(each) for stop in stops_of((ROOT / PAGE).read_text()) for each in stop.functions}
    assert not DOORS.keys() - shown, "DOORS has what the page does not name"
    for function, (file, words) in DOORS.items():
        assert (ROOT / file).is_file(), f"DOORS, {function}: there is no file {file}"
        assert words in (ROOT / file).read_text(), f"DOORS, {function}: {file} has no {words!r}"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("`create`, `start`", "`creates`", "campaign_launch.py has no function creates"),
        ("`complete`, `_sample`", "`complete`", "stop 6: none of "),
        (
            "`infra/db/rollouts/turns.py`: `put_call`",
            "`infra/db/turn.py`: `put_call`",
            "6: infra/db/turn.py ",
        ),
        ("test_the_first_end_stands", "test_the_first_ends", "has no test test_the_first_ends"),
        ("From stop 2, `_publish`", "From stop 2, `_look`", "stop 14: none of "),
        ("From stop 2, `_publish`", "From stop 2, `publishes`", "no stop 2 before it has a fun"),
        ("From stop 2, `_publish`.", "", "stop 14 does not tell from which stop"),
        ("From stop 3, `run_rollout`", "From stop 9, `score`", "no stop 9 before it"),
        ("## 8. The", "### 8. The", "its stops are 1, 2, 3, 4, 5, 6, 7, 9"),
        ("**Keeps:** [invariant 2]", "[invariant 2]", "stop 1 has no paragraph **Keeps:**"),
    ],
)
def test_what_is_wrong_with_a_tour_is_told(old: str, new: str, fault: str) -> None:
    page = (ROOT / PAGE).read_text()
    assert old in page
    assert fault in "\n".join(faults(page.replace(old, new, 1)))
