"""Who may import whom, and what keeps a file readable: read from the source, nothing is run."""

import ast
import graphlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 400
ORDER = (
    {"cli"},
    {"workers"},
    {"activities"},
    {"view"},
    {"node", "reports", "engine", "gateway", "migrations"},
    {"infra", "trainer", "workflows"},
    {"bundled"},
    {"mainspring"},
)
"""Each package imports itself and what stands in a later row. Packages of one row are strangers."""

PACKAGES = tuple(sorted(set().union(*ORDER)))
THE_DOOR = ROOT / "mainspring" / "__main__.py"
"""`python -m mainspring` runs the command line; nothing imports it."""

NOT_FOR = {"activities": {"trainer", "workflows"}, "node": {"trainer", "workflows"}}
"""Lower, and still none of their business: Ray and torch stay in the trainer's own processes."""

HEAVY = {"torch", "ray", "temporalio", "docker", "sqlalchemy", "transformers", "megatron"}
WORKFLOW_LIBRARIES = {"temporalio", "pydantic"}
ROOMS_WITH_SQL = (ROOT / "infra" / "db", ROOT / "migrations")
"""Only here are tables and queries: what leaves these rooms is a record or a figure."""
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


@cache
def imports(path: Path) -> tuple[Import, ...]:
    return tuple(_walk(path, tree(path), lazy=False))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


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
    allowed = _below(package) | {package}
    wrong = [
        found
        for found in imports_of(package)
        if found.package in PACKAGES and found.package not in allowed and found.path != THE_DOOR
    ]
    assert not wrong, listed(wrong)


def test_no_file_imports_itself_in_a_circle() -> None:
    """Also not through other files, and not by imports inside functions."""
    graph = {_module(path): _imported_modules(path) for path in sources(*PACKAGES)}
    sorter = graphlib.TopologicalSorter(graph)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_domain_imports_nothing_heavy() -> None:
    wrong = [found for found in imports_of("mainspring") if found.package in HEAVY]
    assert not wrong, listed(wrong)


def test_workflows_import_nothing_with_side_effects() -> None:
    allowed = {"workflows", "mainspring"} | WORKFLOW_LIBRARIES | sys.stdlib_module_names
    wrong = [found for found in imports_of("workflows") if found.package not in allowed]
    assert not wrong, listed(wrong)


def test_rows_never_leave_their_room() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(*PACKAGES)
        if not any(path.is_relative_to(room) for room in ROOMS_WITH_SQL)
        for module in sorted(_imported_modules(path) | {each.module for each in imports(path)})
        if module == "infra.db.tables.models" or module.partition(".")[0] == "sqlalchemy"
    ]
    assert not wrong, "\n".join(wrong)


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


def _below(package: str) -> set[str]:
    row = next(number for number, names in enumerate(ORDER) if package in names)
    return set().union(*ORDER[row + 1 :]) - NOT_FOR.get(package, set())


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def _imported_modules(path: Path) -> set[str]:
    """Modules of this project, whether named themselves or by something in them."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {each for each in inner if _is_module(each)}
            found |= modules if modules == inner else modules | {node.module}
    return {each for each in found if _is_module(each)}


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


ROOMS: dict[str, tuple[set[str], ...]] = {
    "trainer": ({"process"}, {"step"}, {"values"}, {"corrections", "engines"}, {"losses", "model"}),
    "infra/db": (
        {"plans", "reading"},
        {"cache", "naming", "training"},
        {"programs", "runs"},
        {"connect", "nodes", "rollouts", "tasks"},
        {"fence", "listening", "store"},
        {"leases"},
        {"database"},
        {"faults"},
        {"session"},
        {"address"},
        {"tables"},
    ),
    "infra/policy": (
        {"serving"},
        {"replies"},
        {"engines"},
        {"model"},
        {"protocol"},
        {"weight_label"},
    ),
    "cli": (
        {"fork_server"},
        {"main"},
        {"campaign"},
        {"agents", "bench", "eval", "events", "machine", "model", "rollout", "tasks", "train"},
        {"agreement", "options"},
        {"operations", "progress"},
        {"tables"},
        {"own_packages", "terminal_text"},
    ),
    "cli/operations": ({"acts", "keeping"}, {"runs"}, {"checks"}, {"machine"}),
}
"""The order inside a large folder: its files and folders import what stands in a later row of it.
Those of one row are strangers."""

MAX_NAMES = 20
"""In the listing of a folder: more are rooms of their own."""
MORE_NAMES: dict[str, int] = {}
"""Folders that list more, and how many. This list only gets shorter."""
NUMBERED = {"migrations/versions"}
"""Their names are numbers, found by counting."""


def listing(folder: Path) -> set[str]:
    """Names as a reader meets them. A folder that only holds compiled files is none."""
    return {
        path.name.removesuffix(".py")
        for path in folder.iterdir()
        if path.name not in ("__init__.py", "__main__.py", "__pycache__")
        and (path.is_file() or any(each.suffix not in ("", ".pyc") for each in path.rglob("*")))
    }


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_lies_below(room: str) -> None:
    rows = {name: row for row, names in enumerate(ROOMS[room]) for name in names}
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(room)
        if (name := _name_in(room, _module(path)))
        for module in sorted(_imported_modules(path))
        if (other := _name_in(room, module)) and other != name and rows[other] <= rows[name]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_a_room_has_its_row(room: str) -> None:
    named = [name for names in ROOMS[room] for name in names]
    modules = {path.name.removesuffix(".py") for path in (ROOT / room).glob("*.py")}
    folders = {name for name in listing(ROOT / room) if (ROOT / room / name).is_dir()}
    assert sorted(named) == sorted((modules | folders) - {"__init__"})


def test_no_folder_lists_more_than_one_reads_at_once() -> None:
    folders = {path.parent for path in sources(*PACKAGES)}
    lengths = {str(each.relative_to(ROOT)): len(listing(each)) for each in folders}
    long = {name: length for name, length in lengths.items() if length > MAX_NAMES}
    assert {name: long[name] for name in long if name not in NUMBERED} == MORE_NAMES


def _name_in(room: str, module: str) -> str:
    """The file or folder of `room` that has `module`; empty where it is elsewhere."""
    start = f"{room.replace('/', '.')}."
    return module[len(start) :].partition(".")[0] if module.startswith(start) else ""
