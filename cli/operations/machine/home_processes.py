"""Processes of this machine that work in a home folder: commands that bring workers, and workers.

Found by their command lines, so that a process which holds no lock is named too. A process of
another user whose environment may not be read counts as none.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from cli.operations.machine.supervisor import supervised
from mainspring.config.settings import Settings

_WORKING = ("worker", "train", "quickstart", "sft", "eval", "tasks", "view", "serve", "bench")
_OPTION = "--home"


@dataclass(frozen=True, slots=True)
class HomeProcess:
    pid: int
    command: str
    """The first words after `mainspring`; empty where it cannot be read."""
    run: str | None
    """The run whose workers it brings."""

    @property
    def told(self) -> str:
        """The rest of a sentence that begins with "process N"."""
        return f"is `mainspring {self.command}`" if self.run is None else f"runs {self.run}"


def working_in(home: Path) -> list[HomeProcess]:
    """By their ids."""
    runs = {pid: name for name, pid in supervised(home)}
    found = {pid: HomeProcess(pid, "", name) for pid, name in runs.items()}
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        command = _command(words)
        if command is None or process.pid == os.getpid():
            continue
        if process.pid in runs or _home(process, words) == home.resolve():
            found[process.pid] = HomeProcess(process.pid, command, runs.get(process.pid))
    return [found[pid] for pid in sorted(found)]


def _command(words: Sequence[str]) -> str | None:
    """The command, where it is one that works with the services."""
    for index, word in enumerate(words[:4]):
        is_module = word == "mainspring" and index > 0 and words[index - 1] == "-m"
        if is_module or Path(word).name == "mainspring":
            rest = [argument for argument in words[index + 1 :] if not argument.startswith("-")]
            if rest and rest[0] in _WORKING:
                return " ".join(rest[: 2 if rest[0] in ("worker", "eval", "tasks", "bench") else 1])
    return None


def _home(process: psutil.Process, words: Sequence[str]) -> Path | None:
    try:
        folder = Path(process.cwd())
        for index, word in enumerate(words):
            if word == _OPTION and index + 1 < len(words):
                return (folder / words[index + 1]).resolve()
            if word.startswith(f"{_OPTION}="):
                return (folder / word.partition("=")[2]).resolve()
        default = str(Settings.model_fields["home"].default)
        return (folder / process.environ().get("MAINSPRING_HOME", default)).resolve()
    except psutil.Error:
        return None
