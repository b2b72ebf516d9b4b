"""The edit family: every way a generated function is broken, and every fix the agent may try.

An edit replaces one short text by another, on each line of a module, first occurrence only:
exactly what `sed -i 's/old/new/' module.py` does. A bug is an edit and its fix the
reverse one. Pure; only bundled imports it.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    old: str
    new: str

    @property
    def reverse(self) -> "Edit":
        return Edit(self.new, self.old)

    def apply(self, code: str) -> str:
        """Replace the first `old` of every line."""
        return "\n".join(line.replace(self.old, self.new, 1) for line in code.split("\n"))

    def sed_command(self, module: str) -> str:
        """The shell command that applies this edit to a file."""
        pattern = re.sub(r"([\\/.*^$\[])", r"\\\1", self.old)
        replacement = re.sub(r"([\\/&])", r"\\\1", self.new)
        return f"sed -i 's/{pattern}/{replacement}/' {module}"


# Spaces keep an operator from matching inside a longer one ("<" in "<=").
_PAIRS = (
    (" < ", " > "),
    (" <= ", " >= "),
    (" == ", " != "),
    (" + ", " - "),
    (" * ", " / "),
    (" += ", " -= "),
    (" *= ", " /= "),
    (" = 0", " = 1"),
    ("(1, ", "(2, "),
    ("[0]", "[-1]"),
    ("if x in ", "if x not in "),
    (" and ", " or "),
    ("min(", "max("),
)

EDITS: tuple[Edit, ...] = tuple(
    edit for old, new in _PAIRS for edit in (Edit(old, new), Edit(new, old))
)
