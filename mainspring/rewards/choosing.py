"""Best of n: which of a task's rollouts is counted on, and how often that one is resolved. Pure.

Invariants: the hidden tests' verdict decides nothing here; masked rollouts are no candidates; for
each n the first n candidates of a task, in the order of its samples, are those that are chosen
from, so that more samples never change what fewer gave. Imported by the export of evaluations.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mainspring.config.evaluations.choosing import ChooseBy
from mainspring.rewards.passk import PassAtK, wilson
from mainspring.tasks.patches import split

RUNS_TESTS = re.compile(
    r"(?:^|[\s;&|(])(?:pytest|py\.test|python3? -m (?:pytest|unittest)|python3? \S*test\S*\.py"
    r"|tox|nox|go test|cargo test|(?:npm|yarn|pnpm) (?:run )?test|make (?:test|check)|ctest|rspec"
    r"|phpunit|mvn (?:\S+ )*test|(?:\./)?gradlew? (?:\S+ )*test|\./manage\.py test"
    r"|\S*runtests\.py)\b"
)
"""Commands that run tests, by their usual names."""


@dataclass(frozen=True, slots=True)
class Candidate:
    is_resolved: bool
    result: str
    """Digest of what it left, without white space; empty: nothing."""
    score: float | None = None
    """The judge's; None: it is missing."""
    passes: bool | None = None
    """Whether the last command that ran tests succeeded; None: there was none."""
    wrote: tuple[str, ...] = ()
    """Digests of the tests that it wrote, of those that are run against all."""
    exits: Mapping[str, int | None] = field(default_factory=dict)
    """Exit codes of tests with its patch; None, or not there: they could not be compared."""
    before: Mapping[str, int | None] = field(default_factory=dict)
    """Exit codes of its own tests without any patch."""


@dataclass(frozen=True, slots=True)
class CrossTests:
    """Tests that the candidates of a task wrote, by what they tell. One that was not run with all
    of them and without a patch tells nothing, so that no fault counts as a failure."""

    reproducing: tuple[str, ...]
    """Fail without a patch, and pass with one of the candidates."""
    regression: tuple[str, ...]
    """Pass without a patch: a candidate that fails them broke something."""
    failing: tuple[str, ...]
    """Fail without a patch and with all candidates."""
    not_compared: tuple[str, ...]


def cross_tests(candidates: Sequence[Candidate]) -> CrossTests:
    """The tests of these candidates alone."""
    kinds: dict[str, list[str]] = {"reproducing": [], "regression": [], "failing": []}
    not_compared: list[str] = []
    for test in dict.fromkeys(test for each in candidates for test in each.wrote):
        before = next(
            (code for each in candidates if (code := each.before.get(test)) is not None), None
        )
        codes = [each.exits.get(test) for each in candidates]
        if before is None or None in codes:
            not_compared.append(test)
        elif before == 0:
            kinds["regression"].append(test)
        else:
            kinds["reproducing" if 0 in codes else "failing"].append(test)
    return CrossTests(
        **{kind: tuple(tests) for kind, tests in kinds.items()}, not_compared=tuple(not_compared)
    )


def result_of(patch: bytes) -> str:
    """Digest of the lines that a patch changes, or of a text that is no patch, without white
    space; empty where there is nothing."""
    before, changes = split(patch)
    parts = [
        (change.path, [b"".join(line.split()) for line in _changed(change.raw)])
        for change in sorted(changes, key=lambda change: change.path)
    ]
    if not parts:
        parts = [("", [b"".join(before.split())])]
    if not any(any(lines) or path for path, lines in parts):
        return ""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _changed(raw: bytes) -> list[bytes]:
    """Lines that are added or taken away; of a part without such, as of binary files, all but those
    that name versions."""
    lines = raw.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith(b"@@")), None)
    if start is None:
        return [line for line in lines if not line.startswith(b"index ")]
    return [line for line in lines[start:] if line[:1] in (b"+", b"-")]


def passes_tests(commands: Sequence[tuple[str, int]]) -> bool | None:
    """`commands`: with their return codes, in order; see Candidate.passes."""
    codes = [code for command, code in commands if RUNS_TESTS.search(command)]
    return codes[-1] == 0 if codes else None


def chosen(candidates: Sequence[Candidate], by: ChooseBy) -> Candidate:
    """The one that is counted on; of several that are as good, the first."""
    counts = Counter(each.result for each in candidates)

    def votes(each: Candidate) -> tuple[bool, int]:
        return bool(each.result), counts[each.result]

    match by:
        case ChooseBy.MAJORITY:
            return max(candidates, key=votes)
        case ChooseBy.JUDGE:
            return max(
                candidates, key=lambda each: float("-inf") if each.score is None else each.score
            )
        case ChooseBy.TESTS:
            rank = {True: 2, None: 1, False: 0}
            best = max(rank[each.passes] for each in candidates)
            among = [each for each in candidates if rank[each.passes] == best]
            counts = Counter(each.result for each in among)
            return max(among, key=votes)
        case ChooseBy.CROSS_TESTS:
            told = cross_tests(candidates)

            def passed(each: Candidate) -> tuple[int, int]:
                kinds = (told.reproducing, told.regression)
                reproducing, regression = (
                    sum(each.exits[test] == 0 for test in tests) for tests in kinds
                )
                return reproducing, regression

            most = max(map(passed, candidates))
            among = [each for each in candidates if passed(each) == most]
            counts = Counter(each.result for each in among)
            return max(among, key=votes)


def chosen_at_each_n(tasks: Sequence[Sequence[Candidate]], by: ChooseBy) -> list[PassAtK]:
    """For every n that some task has candidates for: the share of tasks whose chosen one of n is
    resolved, over the tasks with at least n, with Wilson's interval over tasks."""
    estimates = []
    for n in range(1, max(map(len, tasks), default=0) + 1):
        picked = [chosen(task[:n], by).is_resolved for task in tasks if len(task) >= n]
        value = sum(picked) / len(picked)
        estimates.append(PassAtK(n, value, *wilson(value, len(picked)), len(picked)))
    return estimates
