"""How many tests a run ran and how many it left out, as its summary tells. Pure.

Invariants: whatever a run prints is read in linear time; a run without a summary has no counts; a
run is only called smaller than another one when it ran fewer tests and left out more. Imported by
grading, which compares a patch's run with the true fix's and with the empty patch's.
"""

import re
from dataclasses import dataclass

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_PYTEST = re.compile(
    r"^(?:=+ )?((?:\d+ [a-z]+, ){0,12}\d+ [a-z]+) in [\d.]+ ?s\b[^\n]{0,80}$", re.MULTILINE
)
"""The last line of pytest: "= 1 failed, 2 passed, 1 skipped in 0.12s (0:00:01) ="."""
_PART = re.compile(r"(\d+) ([a-z]+)")
_UNITTEST = re.compile(
    r"^Ran (\d+) tests? in [^\n]{0,40}\n+(?:OK|FAILED)(?: \(([^)\n]{0,200})\))?", re.MULTILINE
)
_UNITTEST_PART = re.compile(r"(skipped|expected failures)=(\d+)")
_RAN = frozenset({"passed", "failed", "error", "errors", "xpassed"})
_LEFT_OUT = frozenset({"skipped", "xfailed", "deselected"})


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Counts of one run; several summaries are added up."""

    num_run: int
    """Tests that passed or failed."""
    num_left_out: int
    """Skipped, deselected or expected to fail."""

    def is_smaller_than(self, reference: "RunCounts") -> bool:
        """Tests that ran in the reference were left out here. More tests that are left out, of
        more tests in all, are no sign: a test run over what a program registers grows with it."""
        return self.num_left_out > reference.num_left_out and self.num_run < reference.num_run


def read_counts(output: str) -> RunCounts | None:
    """None when there is no summary of pytest or unittest."""
    text = _COLOR.sub("", output)
    run = left_out = num_summaries = 0
    for summary in _PYTEST.finditer(text):
        parts = [(int(number), word) for number, word in _PART.findall(summary[1])]
        num_summaries += 1
        run += sum(number for number, word in parts if word in _RAN)
        left_out += sum(number for number, word in parts if word in _LEFT_OUT)
    for summary in _UNITTEST.finditer(text):
        aside = sum(int(number) for _, number in _UNITTEST_PART.findall(summary[2] or ""))
        num_summaries += 1
        run += int(summary[1]) - aside
        left_out += aside
    return RunCounts(run, left_out) if num_summaries else None
