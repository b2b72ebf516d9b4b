"""The command that starts an environment's service.

Invariants: it is the section's own, or that of Mainspring's program for environments of verifiers,
whose every argument is the section's. Used by the processes of services.
"""

import json
import sys
from pathlib import Path

from infra.environments import verifiers
from mainspring.config.agents.environments import (
    PORT,
    PYTHON,
    EnvironmentConfig,
    EnvironmentKind,
)

_START = str(Path(verifiers.__path__[0]) / "start.py")


def command_of(config: EnvironmentConfig, port: int) -> list[str]:
    if config.kind is not EnvironmentKind.VERIFIERS:
        return [
            word.replace(PORT, str(port)).replace(PYTHON, sys.executable) for word in config.command
        ]
    return [
        *(config.python or sys.executable, _START),
        *("--port", str(port)),
        *("--environment", config.environment),
        *("--args", json.dumps(config.args)),
        *("--folder", config.folder or "."),
    ]
