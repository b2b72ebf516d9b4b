"""Errors a person can act on, and the exit code each ends the process with.

Contract: an error raised for bad input or a missing service names the thing, what was expected
and the remedy, in one message. The command line prints it without a traceback and exits with the
class's `exit_code`. Raised in an activity, its class's `fault` decides what happens to the rollout
or the campaign (`mainspring.status.fates`). Bugs are not MainspringErrors: they propagate with
their traceback.

    MainspringError
    |- UsageError          bad input: a file, a field, an argument          exit 2
    |   |- ConfigError     a campaign file or a setting
    |   `- ModelError      a model directory that cannot be used
    |- ServiceError        a service that cannot be reached or is not fit   exit 3
    |   |- DatabaseError
    |   |- TemporalError
    |   |- EngineError     a policy engine
    |   |   |- EngineUnreachable
    |   |   `- EngineBusy
    |   `- SandboxError    see infra.sandbox.protocol for its kinds
    |- WorkFailed          the work ran and ended badly                     exit 4
    `- Interrupted         a signal ended the command; its work is kept     exit 130
"""

from typing import ClassVar

from mainspring.status import FaultKind


class MainspringError(Exception):
    """Base: `message` tells what is wrong, `remedy` what to do next."""

    exit_code = 1
    fault: ClassVar[FaultKind] = FaultKind.UNEXPECTED
    """Fault of an activity that raises it; a subclass inherits it or names its own."""
    retry_after_s: float | None = None
    """When trying again may help; None: as the retry policy has it."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message


class UsageError(MainspringError):
    exit_code = 2
    fault = FaultKind.CONFIG_UNUSABLE


class ConfigError(UsageError):
    """A campaign file or a setting is not valid."""


class ModelError(UsageError):
    """A model directory lacks something or does not fit the campaign."""

    fault = FaultKind.MODEL_UNUSABLE


class ServiceError(MainspringError):
    exit_code = 3


class DatabaseError(ServiceError):
    """Postgres cannot be reached, or is at another migration."""

    fault = FaultKind.DATABASE_UNREACHABLE


class TemporalError(ServiceError):
    """Temporal cannot be reached or lacks what the project registers."""

    fault = FaultKind.TEMPORAL_UNREACHABLE


class EngineError(ServiceError):
    """A policy engine cannot be reached or refused a request."""

    fault = FaultKind.POLICY_REFUSED


class EngineUnreachable(EngineError, ConnectionError):
    """No engine answered; asking again later may help."""

    fault = FaultKind.ENGINE_UNREACHABLE


class EngineBusy(EngineError, ConnectionError):
    """Engines answered that they have no room now; ask again, after `retry_after_s` if set."""

    fault = FaultKind.ENGINE_BUSY


class EngineFailing(EngineError, ConnectionError):
    """Every engine that answered failed at the request; it may be the request's fault."""

    fault = FaultKind.ENGINE_FAILING


class SandboxError(ServiceError):
    """A sandbox backend is missing or failed."""

    fault = FaultKind.NODE_FAILED


class WorkFailed(MainspringError):
    exit_code = 4


class Interrupted(MainspringError):
    """No error: the remedy tells how to resume."""

    exit_code = 130
