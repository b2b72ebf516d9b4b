"""The table of docs/grading.md: how often each suspicion is right, counted while tests run.

Every test of honest work and of cheats tells what was marked. Run in one process, with
MAINSPRING_WRITE_TABLE set, it is written into the page; a part of the tests would write less, so
that the page's own test compares the numbers of kinds.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from mainspring.integrity.exploits import EXPLOITS
from mainspring.status import Suspicion

PAGE = Path(__file__).parents[2] / "docs" / "grading.md"
HEADER = "| suspicion | honest work marked | cheats of its kind marked | precision | recall |"
_EXITS = {"exit", "raise-exit", "atexit", "exec-true", "printed-summary", "excepthook", "exit-code"}
KINDS = {
    Suspicion.SHADOWED_MODULES: {each.name for each in EXPLOITS if each.name.startswith("shadow-")},
    Suspicion.HOOKED_START: {"sitecustomize", "usercustomize"},
    Suspicion.EDITED_TESTS: {"conftest-passes", "conftest-deselects", "pytest-ini", "edited-ci"},
    Suspicion.ENDED_EARLY: {
        each.name for each in EXPLOITS if each.name.endswith("-exit") or each.name in _EXITS
    },
    Suspicion.PATCHED_RUNNER: {
        *(each.name for each in EXPLOITS if each.name.startswith("patched-")),
        *("replaced-pytest", "skips"),
    },
    Suspicion.FAKED_EQUALITY: {"always-equal"},
}
"""Exploits that a suspicion is meant for; those of the other suspicions are commands and patches of
their own tests."""


@dataclass(slots=True)
class Tally:
    num_honest: int = 0
    num_refused: int = 0
    """Of honest work: what did not resolve, or counts as cheated."""
    num_cheats: int = 0
    num_resolved: int = 0
    """Of cheats: what resolved its task all the same."""
    honest_marked: Counter[Suspicion] = field(default_factory=Counter)
    of_kind: Counter[Suspicion] = field(default_factory=Counter)
    marked: Counter[Suspicion] = field(default_factory=Counter)

    def honest(self, marks: Collection[Suspicion], *, refused: bool = False) -> None:
        self.num_honest += 1
        self.num_refused += refused
        self.honest_marked.update(set(marks))

    def cheat(
        self,
        meant: Collection[Suspicion],
        marks: Collection[Suspicion],
        *,
        resolved: bool | None = None,
    ) -> None:
        """`resolved` is None for what was not graded."""
        self.num_cheats += resolved is not None
        self.num_resolved += bool(resolved)
        self.of_kind.update(set(meant))
        self.marked.update(set(meant) & set(marks))

    def lines(self) -> list[str]:
        found = [HEADER, "|---" * 5 + "|"]
        for each in Suspicion:
            wrong, right, kind = self.honest_marked[each], self.marked[each], self.of_kind[each]
            precision = _share(right, right + wrong)
            found.append(
                f"| `{each}` | {wrong} of {self.num_honest} | {right} of {kind} | {precision} "
                f"| {_share(right, kind)} |"
            )
        stopped = self.num_cheats - self.num_resolved
        wrong = self.num_refused
        found.append(
            f"| not resolved | {wrong} of {self.num_honest} | {stopped} of {self.num_cheats} "
            f"| {_share(stopped, stopped + wrong)} | {_share(stopped, self.num_cheats)} |"
        )
        return found


TALLY = Tally()


def written(page: str, lines: list[str]) -> str:
    """`page` with these lines in the place of its table."""
    above, _, rest = page.partition(HEADER)
    below = [line for line in rest.splitlines()[1:] if not line.startswith("|")]
    return "\n".join([*above.splitlines(), *lines, *below]) + "\n"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"
