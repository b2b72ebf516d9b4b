"""Programs are files: none of any length stands in a string literal, and shells' are linted."""

import ast
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.sources.kinds.r2e import task_fields

ROOT = Path(__file__).parents[1]
PACKAGES = (
    *(
        "activities",
        "cli",
        "engine",
        "gateway",
        "infra",
        "mainspring",
        "migrations",
        "node",
        "reports",
    ),
    *("trainer", "view", "workers", "workflows"),
)
DATA = ("bundled/", "mainspring/agents/bash_prompts.py")
"""A generator's templates of tasks, and prompts."""
MAX_LINES = 5
SHELLS = (
    *sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.sh")),
    *sorted(path for path in (ROOT / ".ci").iterdir()),
)
_SHELL = re.compile(
    r"^\s*(?:set [-+]|cd |export |echo |printf |exec |git |rm |mkdir |exit\b|trap |local "
    r"|fi\b|done\b|esac\b"
    r"|for \w+ in\b|while .*; do|if \[|\[\[ |\w+=\S*\$\(|\w+\(\) *[{(])",
    re.MULTILINE,
)
_DOCKERFILE = re.compile(r"^(?:FROM|RUN|COPY|ENTRYPOINT) \S", re.MULTILINE)


def _literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String literals with their line, without docstrings; placeholders of f-strings are `x`."""
    parts: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            parts.add(node.value)
        if isinstance(node, ast.JoinedStr):
            parts |= set(node.values)
    for node in ast.walk(tree):
        if node in parts:
            continue
        if isinstance(node, ast.JoinedStr):
            texts = (p.value if isinstance(p, ast.Constant) else "x" for p in node.values)
            yield node.lineno, "".join(map(str, texts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _is_program(text: str) -> bool:
    if len(text.strip().splitlines()) <= MAX_LINES:
        return False
    if len(_SHELL.findall(text)) > 2 or len(_DOCKERFILE.findall(text)) > 1:
        return True
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return False
    return not all(isinstance(each, ast.Expr) for each in statements)


def _programs(source: str) -> list[int]:
    return [line for line, text in _literals(ast.parse(source)) if _is_program(text)]


def test_no_program_stands_in_a_string_literal() -> None:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = [
        f"{name}:{line}"
        for path in files
        if not (name := str(path.relative_to(ROOT))).startswith(DATA)
        for line in _programs(path.read_text())
    ]
    assert len(files) > 200
    assert not found, f"write each as a file beside its module: {found}"


@pytest.mark.parametrize(
    "source",
    [
        'A = """\nset -e\ncd /x\nfor a in b; do\n  echo\ndone\nexit 1\n"""',
        'A = f"""\nimport sys\na = {b}\nc = 1\nd = 2\ne = 3\nsys.exit(a)\n"""',
        'A = B + r"""\nFROM x\nRUN a\n\n\nRUN b\nRUN c"""',
    ],
)
def test_a_program_in_a_literal_is_found(source: str) -> None:
    assert _programs(source) == [1]


def test_texts_and_short_programs_are_let_be() -> None:
    assert not _programs('A = "set -e\\ncd /x\\necho a\\nexit 1"')
    assert not _programs('"""\nset -e\ncd /x\nfor a in b; do\n  echo\ndone\nexit 1\n"""')
    assert not _programs('A = """One.\nTwo.\nThree.\nFour.\nFive.\nSix."""')


@pytest.mark.parametrize("script", SHELLS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shell_programs_are_sound(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    beside = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if not (shellcheck := beside or shutil.which("shellcheck")):
        pytest.skip("shellcheck is not installed")
    subprocess.run([shellcheck, str(script)], check=True)


def test_the_check_in_stored_tasks_keeps_its_text() -> None:
    """Tasks imported earlier hold it; another text would be another task."""
    row = {
        "problem_statement": "It fails.",
        "repo_name": "a/b",
        "commit_hash": "c",
        "expected_output_json": '{"a": "PASSED"}',
    }
    command = str(task_fields(row)["test_command"])
    digest = "0dcd7769232cc290e03fab5a6cc973bca2bcf24781b392e156dc97594e9e1e47"
    assert hashlib.sha256(command.encode()).hexdigest() == digest
