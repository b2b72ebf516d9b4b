"""Write docs/test-times.md from two runs: `python docs/make_test_times.py TEST.xml SLOW.xml`.

Each file is what `PYTEST_ADDOPTS=--junitxml=FILE make test` (then `make test-slow`) wrote. A test's
time has its set-up and its end in it. What is at the head of the page is written by hand.
"""

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "test-times.md"
LEAST_S = 15.0
"""Files that take less are summed up in one row."""


def seconds(report: Path) -> dict[str, list[float]]:
    """Seconds of the tests that ran, by file."""
    times = defaultdict[str, list[float]](list)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is None:
            name = case.get("classname", "").replace(".", "/")
            times[f"{name}.py"].append(float(case.get("time", 0)))
    return times


def section(command: str, times: dict[str, list[float]]) -> str:
    long = [name for name in times if sum(times[name]) >= LEAST_S]
    long.sort(key=lambda name: sum(times[name]), reverse=True)
    rows = [f"| `{name}` | {len(times[name])} | {sum(times[name]):.0f} |" for name in long]
    others = [each for name, each in times.items() if name not in long]
    rows.append(
        f"| {len(others)} other files | {sum(map(len, others))} | {sum(map(sum, others)):.0f} |"
    )
    total = sum(map(sum, times.values()))
    return "\n".join(
        [
            f"## {command}: {total / 60:.0f} minutes of tests, in three processes",
            "",
            "| file | tests | seconds |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def main(test: str, slow: str) -> None:
    head = PAGE.read_text().partition("\n## ")[0].rstrip()
    sections = [
        section("make test", seconds(Path(test))),
        section("make test-slow", seconds(Path(slow))),
    ]
    PAGE.write_text("\n".join([head, "", *sections]))


if __name__ == "__main__":
    main(*sys.argv[1:])
