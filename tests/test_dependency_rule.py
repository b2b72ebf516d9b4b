"""Who may import whom, and what keeps a file readable: read from the source, nothing is run."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 400
PACKAGES = ("mainspring", "workflows", "activities", "workers", "trainer", "infra", "migrations")

MAY_IMPORT = {
    "mainspring": {"mainspring"},
    "workflows": {"mainspring", "workflows"},
    "activities": {"mainspring", "infra", "activities"},
    "trainer": {"mainspring", "trainer"},
    "infra": {"mainspring", "infra", "migrations"},
    "migrations": {"mainspring", "infra", "migrations"},
    "workers": set(PACKAGES),
}
"""Of this project's packages. `workers` wires the others, so it may see all of them."""

HEAVY = {"torch", "ray", "temporalio", "docker", "sqlalchemy", "transformers", "megatron"}
WORKFLOW_LIBRARIES = {"temporalio", "pydantic"}
NAMES_THAT_SAY_NOTHING = re.compile(r"(utils?|helpers?|common|misc|managers?)")


@dataclass(frozen=True, slots=True)
class Import:
    path: Path
    line: int
    module: str
    lazy: bool
    """Inside a function: runs only when that is called."""

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}"


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[Import]:
    yield from _walk(path, ast.parse(path.read_text()), lazy=False)


def _walk(path: Path, node: ast.AST, *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(path, child.lineno, alias.name, lazy)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{path}:{child.lineno}: relative import: name the package"
            yield Import(path, child.lineno, child.module or "", lazy)
        inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _walk(path, child, lazy=inside)


def imports_of(package: str) -> list[Import]:
    return [found for path in sources(package) for found in imports(path)]


def listed(found: list[Import]) -> str:
    return "\n".join(map(str, found))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_lies_below(package: str) -> None:
    wrong = [
        found
        for found in imports_of(package)
        if found.package in PACKAGES
        and found.package not in MAY_IMPORT[package]
        and not (found.lazy and _is_command_line(found.path))
    ]
    assert not wrong, listed(wrong)


def test_domain_imports_nothing_heavy() -> None:
    wrong = [
        found
        for found in imports_of("mainspring")
        if found.package in HEAVY and not (found.lazy and _is_command_line(found.path))
    ]
    assert not wrong, listed(wrong)


def test_workflows_import_nothing_with_side_effects() -> None:
    allowed = MAY_IMPORT["workflows"] | WORKFLOW_LIBRARIES | sys.stdlib_module_names
    wrong = [found for found in imports_of("workflows") if found.package not in allowed]
    assert not wrong, listed(wrong)


def test_nothing_imports_the_tests() -> None:
    wrong = [
        each for package in PACKAGES for each in imports_of(package) if each.package == "tests"
    ]
    assert not wrong, listed(wrong)


def test_files_are_readable() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in sources(*PACKAGES, "tests", "docs")
        for problem in _reading_problems(path)
    ]
    assert not wrong, "\n".join(wrong)


def test_files_hide_nothing() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in sources(*PACKAGES)
        for problem in _hidden_problems(path)
    ]
    assert not wrong, "\n".join(wrong)


def _reading_problems(path: Path) -> Iterator[str]:
    text = path.read_text()
    if (num_lines := text.count("\n")) > MAX_LINES:
        yield f"{num_lines} lines: more than one noun?"
    if NAMES_THAT_SAY_NOTHING.fullmatch(path.stem):
        yield "a name that says nothing"
    if not text.isascii():
        yield "not ASCII"
    in_package = path.relative_to(ROOT).parts[0] in PACKAGES
    if in_package and text and not ast.get_docstring(ast.parse(text)):
        yield "does not open with its contract"


def _hidden_problems(path: Path) -> Iterator[str]:
    text = path.read_text()
    for found in re.findall(r"\b(?:TO" r"DO|FIX" r"ME|NotImplementedError)\b", text):
        yield f"{found}: finish it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler) and isinstance(node.body[0], ast.Pass):
            caught = ast.unparse(node.type) if node.type else "everything"
            if caught in ("everything", "Exception", "BaseException"):
                yield f"line {node.lineno} swallows {caught}"


def _is_command_line(path: Path) -> bool:
    return path.is_relative_to(ROOT / "mainspring" / "cli")
