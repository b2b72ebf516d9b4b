"""Style: what people read is in plain words, and every command and option has a help text."""

import ast
import builtins
import io
import keyword
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from mainspring.config.settings import Settings
from tests.test_dependency_rule import PACKAGES, ROOT, sources, tree

PROMPTS = {"mainspring/agents/bash_prompts.py"}
"""Texts for models, whose words are part of what was measured."""
MAX_CHARS = 300
BANNED = re.compile(
    # `nobody` in backticks is the account of that name.
    r"(?<!`)\b(?:go(?:es)? on|nobody|whoever|(?:what )?is away|what is there|says?|for ever"
    r"|once more|so many)\b",
    re.IGNORECASE,
)
PRINTING = {"print", "typer.echo", "typer.secho", "click.echo", "click.secho", "sys.stderr.write"}
DRAWN_BY = {
    *("rich.console.Group", "rich.live.Live", "rich.text.Text"),
    *(f"rich.progress.{name}" for name in ("BarColumn", "MofNCompleteColumn", "Progress")),
    *(f"rich.progress.{name}" for name in ("TaskID", "TimeElapsedColumn", "TimeRemainingColumn")),
}
"""What screens may take of rich itself: it takes no markup."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _commands() -> Iterator[tuple[str, Any]]:
    from cli.main import app

    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{path} {name}")

    return walk(typer.main.get_command(app), "mainspring")


def _help_texts() -> Iterator[tuple[str, str | None]]:
    for path, command in _commands():
        yield path, command.help
        for parameter in command.params:
            yield f"{path} {parameter.opts[0]}", parameter.help


def _faults_of(where: str, text: str | None) -> list[str]:
    if not text:
        return ["has no help text"]
    faults = []
    if not text[0].isupper():
        faults.append("does not begin with a capital letter")
    if not text.endswith("."):
        faults.append("does not end with a period")
    if where.split()[-1].startswith("--") and len(text) > MAX_CHARS:
        faults.append(f"is longer than {MAX_CHARS} characters")
    return faults + [f"has {word!r}" for word in BANNED.findall(text)]


def _strings(node: ast.AST) -> Iterator[ast.Constant]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part


def _docstrings(module: ast.Module) -> Iterator[ast.Constant]:
    """Also the strings under a field or a constant, which describe it."""
    for node in ast.walk(module):
        if isinstance(node, _DOCUMENTED):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    yield from _strings(statement)


@cache
def _described_in(path: Path) -> tuple[ast.Constant, ...]:
    return tuple(_docstrings(tree(path)))


def _texts(module: ast.Module) -> Iterator[ast.Constant]:
    """Docstrings, and strings of raised exceptions and of `remedy=`."""
    yield from _docstrings(module)
    for node in ast.walk(module):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield from _strings(node.exc)
        elif isinstance(node, ast.keyword) and node.arg == "remedy":
            yield from _strings(node.value)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _banned(source: str) -> list[str]:
    texts = [(text.lineno, text.value) for text in _texts(ast.parse(source))]
    found = {
        (line, word) for line, text in (*texts, *_comments(source)) for word in BANNED.findall(text)
    }
    return [f"{line}: {word}" for line, word in sorted(found)]


def test_help_texts_are_whole_sentences_in_plain_words() -> None:
    found = {where: _faults_of(where, text) for where, text in _help_texts()}
    assert len(found) > 100
    assert not {where: faults for where, faults in found.items() if faults}


def test_help_pages_fit_80_columns() -> None:
    from cli.main import app

    runner = CliRunner(env={"COLUMNS": "80"})
    for path, _ in _commands():
        page = runner.invoke(app, [*path.split()[1:], "--help"])
        assert page.exit_code == 0
        assert "\N{HORIZONTAL ELLIPSIS}" not in page.output, path


@pytest.mark.parametrize(
    ("text", "num_faults"),
    [
        ("Number of rollouts to list.", 0),
        ("Says how many.", 1),
        ("of the run", 2),
        (None, 1),
        ("A" * MAX_CHARS + ".", 1),
    ],
)
def test_a_bad_help_text_is_found(text: str | None, num_faults: int) -> None:
    assert len(_faults_of("mainspring x --option", text)) == num_faults


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_docstrings_and_comments_are_in_plain_words(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    found = {
        str(file.relative_to(ROOT)): words
        for file in files
        if str(file.relative_to(ROOT)) not in PROMPTS and (words := _banned(file.read_text()))
    }
    assert files
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        '"""The file says so."""',
        'class Lease:\n    holder: str\n    """Whoever has it."""',
        'def lose():\n    raise Lost(f"node {name} goes on")',
        'Lost("gone", remedy="run it once more")',
        "count = 0  # nobody waits",
    ],
)
def test_a_banned_word_is_found(source: str) -> None:
    assert len(_banned(source)) == 1


def test_words_in_other_strings_are_let_be() -> None:
    assert not _banned('PROMPT = "say what you know"\ndef say(says):\n    return says')


NO_NOUN = re.compile(r"\s*(?:Of|What)\b")
DESCRIBED = (*PACKAGES, "docs", "examples")


@pytest.mark.parametrize("folder", DESCRIBED)
def test_docstrings_begin_with_what_a_thing_is_or_does(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.lineno}: {text.value:.60}"
        for path in sources(folder)
        for text in _described_in(path)
        if NO_NOUN.match(text.value)
    ]
    assert not found, "\n".join(found)


OF_OTHERS = {
    "_test.go",  # how Go names tests
    "apply_kl_penalty",  # a function of verl
    "clip_ratio_c",  # a field of verl
    "compute_gae_advantage_return",  # a function of verl
    "compute_value_loss",  # a function of verl
    "python3",  # the interpreter of a sandbox
    "response.incomplete",  # an event of OpenAI's API
    "selector",  # a field of SGLang
}
"""Names of other programs that docstrings quote."""
_QUOTED = re.compile(r"`([A-Za-z_][\w./]*)(?:\([^`]*\))?`")


def _names_in(path: Path) -> Iterator[str]:
    described = {id(text) for text in _described_in(path)}
    for node in ast.walk(tree(path)):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Name(name) | ast.Attribute(_, name) | ast.arg(name) | ast.keyword(str(name)):
                yield name
            case ast.alias(name, other):
                yield from (*name.split("."), other or name)
            case ast.Constant(str(value)) if id(node) not in described:
                yield value.strip("/")


@cache
def _owners() -> dict[str, set[str]]:
    """By module, as "folder.file", and by class: the names in its file."""
    owners = defaultdict[str, set[str]](set)
    for path in sources(*DESCRIBED):
        names = {*_names_in(path)}
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        classes = [each.name for each in tree(path).body if isinstance(each, ast.ClassDef)]
        for owner in (module.removesuffix(".__init__"), *classes):
            owners[owner] |= names
    return dict(owners)


@cache
def _known() -> set[str]:
    paths = [*ROOT.iterdir(), *sources("tests")]
    paths += [path for folder in DESCRIBED for path in (ROOT / folder).rglob("*")]
    files = {part for path in paths for part in path.relative_to(ROOT).parts}
    stems = {name.partition(".")[0] for name in files}
    settings = {f"MAINSPRING_{name.upper()}" for name in Settings.model_fields}
    return OF_OTHERS.union(
        files, stems, settings, keyword.kwlist, dir(builtins), *_owners().values()
    )


def _resolves(name: str) -> bool:
    """Whether it is known, or each part of it; a part of a class or a module must be in its file.
    The name of a package may be a section of a campaign file: `trainer.std`."""
    owner, _, last = name.rpartition(".")
    if name in _known() or name in _owners():
        return True
    if owner in _owners() and owner not in DESCRIBED:
        return last in _owners()[owner]
    return all(
        part in _known() or (not part.endswith(".py") and {*part.split(".")} <= _known())
        for part in name.rstrip("./").split("/")
    )


def test_a_name_that_is_nowhere_is_found() -> None:
    for good in ("test_style.py", "infra/db", "mainspring.status.fates", "Verdict.RESOLVED"):
        assert _resolves(good), good
    for bad in (
        "gone.py",
        "no_such_name",
        "mainspring.status.gone",
        "Verdict.gone",
        "infra/gone.py",
    ):
        assert not _resolves(bad), bad


def test_names_in_docstrings_exist() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.lineno}: {name}"
        for path in sources(*DESCRIBED)
        for text in _described_in(path)
        for name in _QUOTED.findall(text.value)
        if not _resolves(name)
    ]
    assert not found, "\n".join(found)


def _markup_in(source: str) -> Iterator[str]:
    """Where text could become markup, or reach the terminal as it is: screens print by
    `cli.tables` and `cli.terminal_text`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (
                f"{node.lineno}: import {each.name}" for each in node.names if "rich" in each.name
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rich":
            for each in node.names:
                if f"{node.module}.{each.name}" not in DRAWN_BY:
                    yield f"{node.lineno}: {node.module}.{each.name}"
        elif isinstance(node, ast.keyword) and node.arg == "markup":
            yield f"{node.value.lineno}: markup="
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            is_json = bool(node.args) and ast.unparse(node.args[0]).startswith("json.dumps(")
            if called in PRINTING and not (is_json and not isinstance(node.args[0], ast.IfExp)):
                yield f"{node.lineno}: {called}"
            if called.endswith((".from_markup", ".from_ansi")):
                yield f"{node.lineno}: {called}"


def test_screens_print_text_and_no_markup() -> None:
    found = {
        str(path.relative_to(ROOT)): [*_markup_in(path.read_text())]
        for path in sorted((ROOT / "cli").rglob("*.py"))
        if path.name not in ("tables.py", "terminal_text.py")
    }
    assert not {path: each for path, each in found.items() if each}


def test_what_could_be_markup_is_found() -> None:
    for bad in (
        "from rich.console import Console",
        "from rich.table import Table",
        "import rich.table",
        "from rich.progress import TextColumn",
        "from rich import print",
        "from rich.panel import Panel",
        "a.print(b, markup=True)",
        "Text.from_markup(a)",
        "print(a)",
        "typer.echo(a)",
        "typer.echo(json.dumps(a) if b else c)",
    ):
        assert [*_markup_in(bad)], bad
    assert not [*_markup_in("typer.echo(json.dumps(a)); console.print(a); echo(a)")]


def test_help_texts_are_read_as_they_are_written() -> None:
    from rich.text import Text

    for where, text in _help_texts():
        assert Text.from_markup(text or "").plain == (text or ""), where


WAITS_FOR_A_WORKER = {"execute_update", "start_update", "query", "execute_workflow"}
"""Calls of Temporal that no server answers alone: without a worker they wait without a bound."""
OF_BENCHES = {"bench_nodes.py", "bench_turns.py", "playing.py"}
"""They bring their workers themselves."""


@pytest.mark.parametrize("folder", ["cli", "infra/temporal"])
def test_no_command_waits_for_a_worker_without_a_bound(folder: str) -> None:
    """A pause is a signal, which is recorded; what a workflow does is read from the store."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.func.attr}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name not in OF_BENCHES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in WAITS_FOR_A_WORKER
    ]
    assert not found, found
