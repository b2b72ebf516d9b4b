"""Programs that run elsewhere (a sandbox, a container, a child process), each a file of its own.

Invariant: a program's text is read from its file and never written in a string literal, so that
linters and editors see it. Imported by every module that sends one somewhere.
"""

from pathlib import Path


def program(module: str, name: str) -> str:
    """The program `name` beside a module, given as its `__file__`. Of a Python program: what
    follows its docstring."""
    path = Path(module).with_name(name)
    text = path.read_text()
    return text.partition('"""\n')[2] if path.suffix == ".py" else text
