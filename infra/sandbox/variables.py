"""The variables that a sandbox's commands get, as a line for its shell.

Invariant: the shell itself and what it runs between commands do not get them. Imported by the
backends.
"""

import shlex
from datetime import UTC, datetime

from infra.sandbox import clock, egress
from infra.sandbox.protocol import SandboxSpec


def exports(spec: SandboxSpec) -> str:
    """A line of bash; empty where nothing is to be set."""
    variables = dict(spec.environment)
    if spec.allow_hosts:
        variables |= egress.ENVIRONMENT
    if spec.clock is not None:
        variables |= clock.variables(spec.clock, datetime.now(UTC))
    if not variables:
        return ""
    return "export " + " ".join(f"{k}={shlex.quote(v)}" for k, v in variables.items())
