"""Prints the test files that a change reaches, by the import graph (`make test-changed`).

    python -m tests.reached [REVISION]

Changed are files that differ from the revision (default: HEAD), and untracked ones. A changed
module reaches each test file that imports it, directly or through others, also inside functions. A
module that a registry names ("package.module:attribute") reaches the tests of its package: an edge
to all importers of the registry would reach most tests. A conftest.py reaches the tests of its
folder. Any change reaches the tests that read the whole tree (`READERS`), and a change of what is
installed (`EVERYTHING`) every test.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
EVERYTHING = {"pyproject.toml", "constraints.txt", "tests/conftest.py", "Makefile"}
DOTTED = re.compile(r"\w+(?:\.\w+)+")
REGISTERED = re.compile(r'"(\w+(?:\.\w+)+):\w+"')
READERS = "tests/test_*.py"
"""Rules and pages: these read the whole tree and import little of it."""


@cache
def search_path() -> tuple[Path, ...]:
    """Where a test process finds modules of this project."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return (ROOT, *(ROOT / folder for folder in options["pythonpath"]))


@cache
def module_file(name: str) -> Path | None:
    for folder in search_path():
        path = folder / name.replace(".", "/")
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


@cache
def imported(path: Path) -> frozenset[Path]:
    """Files of this project that a file imports. A name within a package may be a module."""
    files = set[Path | None]()
    for node in ast.walk(ast.parse(path.read_text())):
        names = list[str]()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # What a test runs by `python -m`.
            is_test = path.is_relative_to(ROOT / "tests")
            names = [node.value] if is_test and DOTTED.fullmatch(node.value) else []
        files.update(module_file(name) for name in names)
    return frozenset(file for file in files if file is not None)


@cache
def registered(path: Path) -> list[str]:
    return REGISTERED.findall(path.read_text())


def reached(changed: set[Path], files: list[Path]) -> list[Path]:
    """Test files among these files that a change of others reaches."""
    importers: dict[Path, set[Path]] = {}
    for path in files:
        below = path.parent.rglob("*.py") if path.name == "conftest.py" else ()
        for user in below:
            importers.setdefault(path, set()).add(user)
        for target in imported(path):
            importers.setdefault(target, set()).add(path)
        if not path.is_relative_to(ROOT / "tests"):
            for named in registered(path):
                if (file := module_file(named)) is not None:
                    mirrored = ROOT / "tests" / file.relative_to(ROOT).parts[0]
                    importers.setdefault(file, set()).update(mirrored.rglob("test_*.py"))
    seen, waiting = set[Path](), list(changed)
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting.extend(importers.get(path, ()))
    return sorted(path for path in seen if path.name.startswith("test_") and path.is_file())


def git(*words: str) -> list[str]:
    run = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in run.stdout.split("\0") if name]


def main() -> None:
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    names = git("diff", "--name-only", "-z", revision, "--")
    names += git("ls-files", "-z", "--others", "--exclude-standard")
    files = [ROOT / name for name in git("ls-files", "-z", "--", "*.py")]
    files = sorted({*(path for path in files if path.is_file()), *_added(names)})
    if EVERYTHING & set(names):
        tests = [path for path in files if path.name.startswith("test_")]
    else:
        tests = reached({ROOT / name for name in names}, files)
        if names:
            tests = sorted({*tests, *ROOT.glob(READERS)})
    print("\n".join(str(path.relative_to(ROOT)) for path in tests))


def _added(names: list[str]) -> Iterator[Path]:
    yield from (ROOT / name for name in names if name.endswith(".py") and (ROOT / name).is_file())


if __name__ == "__main__":
    main()
