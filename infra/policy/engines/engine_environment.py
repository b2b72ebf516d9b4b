"""The Python environment that an engine of another kind is started from: this one, or its own.

SGLang and vLLM need another torch than the trainer, so they usually have a Python of their own,
which has nothing of Mainspring. Used by the commands that start them.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from mainspring.errors import UsageError

LOOK_TIMEOUT_S = 60.0
"""For a Python that starts from a slow disk."""


def python_of(environment: Path | None) -> str:
    """Its interpreter; this one for None. Raises UsageError where there is none."""
    if environment is None:
        return sys.executable
    python = environment.expanduser().absolute() / "bin" / "python"
    if not python.exists():
        raise UsageError(
            f"--env {environment} is no Python environment: {python} does not exist",
            remedy="give the folder that `make install-gpu` or `python -m venv` made",
        )
    return str(python)


def has_module(python: str, name: str) -> bool:
    """Whether `name` can be imported there; it is not."""
    if python == sys.executable:
        return importlib.util.find_spec(name) is not None
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    try:
        command = [python, "-c", code, name]
        ended = subprocess.run(command, timeout=LOOK_TIMEOUT_S, check=False, capture_output=True)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def variables(python: str) -> dict[str, str]:
    """Variables of this process, as a process of `python` needs them: its own tools come first, and
    it sees no module of this environment."""
    if python == sys.executable:
        return dict(os.environ)
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder = Path(python).parent
    path = f"{folder}{os.pathsep}{own.get('PATH', os.defpath)}"
    return own | {"PATH": path, "VIRTUAL_ENV": str(folder.parent)}
