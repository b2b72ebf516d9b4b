"""Write docs/store.md from the docstrings of `infra/db`: `python docs/make_store_reference.py`.

A test compares, so the page never differs from the code. It has every public function, and every
public method of a public class, with the first sentence of its docstring; the first argument of
most, the database, is left out. Nothing is imported: the source is read.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "store.md"
STORE = ROOT / "infra" / "db"
HEAD = """\
# The store

<!-- Written by docs/make_store_reference.py from the docstrings of infra/db. -->

Each function that reads or writes Postgres, by the file that has it, with its first sentence.
Tables and SQL exist here and in `migrations` alone; other parts get records and figures. Unless a
sentence tells otherwise, writing twice is writing once, and "the one that stands" is what the first
writer stored ([invariant 2](architecture.md#invariants)). `Fenced` is raised for an epoch that is
over.

| file | is about |
|---|---|
"""
LEFT_OUT = {"database", "db", "connection", "self", "cls"}
ENDS_NO_SENTENCE = ("e.g", "i.e")


def page() -> str:
    files = [path for path in sorted(STORE.rglob("*.py"), key=_order) if _rows(path)]
    listed = "\n".join(
        f"| [`{_name(path)}`](#{_anchor(path)}) | {_about(path)} |" for path in files
    )
    sections = "\n".join(_section(path) for path in files)
    return f"{HEAD}{listed}\n\n{sections}"


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Public ones with their names, in the order of the file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            owner, members = "", [node]
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            owner, members = f"{node.name}.", _methods(node)
        else:
            continue
        for member in members:
            if not member.name.startswith("_"):
                yield f"{owner}{member.name}", member


def sentence(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) -> str:
    """The first one of its docstring; empty without one."""
    text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    end = text.find(". ")
    while end >= 0 and text[:end].endswith(ENDS_NO_SENTENCE):
        end = text.find(". ", end + 1)
    return text if end < 0 else text[: end + 1]


def _methods(owner: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """No property, which is a field of a record; no hook of SQLAlchemy's types."""
    return [
        node
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("process_")
        and "property" not in map(ast.unparse, node.decorator_list)
    ]


def _order(path: Path) -> tuple[bool, Path]:
    """Sort key: files that are read for figures and screens come last."""
    return "reading" in path.parts, path


def _name(path: Path) -> str:
    return str(path.relative_to(STORE))


def _anchor(path: Path) -> str:
    return _name(path).replace("/", "").replace(".", "")


def _about(path: Path) -> str:
    return _cell(sentence(ast.parse(path.read_text())))


def _rows(path: Path) -> list[str]:
    return [
        f"| `{_called(name, node)}` | {_cell(sentence(node)) or '-'} |"
        for name, node in functions(path)
    ]


def _section(path: Path) -> str:
    rows = "\n".join(_rows(path))
    return f"## {_name(path)}\n\n| function | first sentence |\n|---|---|\n{rows}\n"


def _called(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    names = [argument.arg for argument in arguments if argument.arg not in LEFT_OUT]
    starred = f"*{node.args.vararg.arg}" if node.args.vararg else None
    inside = ", ".join([*names, *([starred] if starred else [])])
    gives = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return _cell(f"{name}({inside}){gives}")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
