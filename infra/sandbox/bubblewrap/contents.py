"""Contents of a sandbox without an image: the node's own programs, as a task meets them.

Invariant: what is told was seen in a sandbox, not guessed from the node. Imported by the bubblewrap
backend, and shown by `mainspring doctor`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from infra.sandbox.bubblewrap.command import PYTHON
from mainspring.artifacts.program_files import program


@dataclass(frozen=True, slots=True)
class Contents:
    COMMAND: ClassVar[str] = program(__file__, "contents.sh")

    python: str
    """Path of `python3`."""
    version: str
    prefix: str
    git: str
    pytest: str
    """Its version; empty when it cannot be imported."""
    tools: tuple[str, ...]

    @classmethod
    def read(cls, output: str) -> Self:
        """Read what COMMAND printed."""
        parts = [line.partition(" ") for line in output.splitlines()]
        lines = [(name, value) for name, _, value in parts]
        values = dict(lines)
        return cls(
            python=values.get("python", ""),
            version=values.get("version", ""),
            prefix=values.get("prefix", ""),
            git=values.get("git", "").removeprefix("git version "),
            pytest=values.get("pytest", ""),
            tools=tuple(value for name, value in lines if name == "tool"),
        )

    def is_python_of(self, prefix: Path | None) -> bool:
        """Whether `python3` is the node's own, which lies at `prefix`; None: below /usr."""
        return prefix is None or self.prefix == PYTHON

    def __str__(self) -> str:
        pytest = f"pytest {self.pytest}" if self.pytest else "no pytest"
        tools = ", ".join(self.tools) or "none"
        return (
            f"{self.python} is Python {self.version}, {pytest}, git {self.git}; of gcc, make, "
            f"node, go, cargo, java: {tools}"
        )
