"""Errors a person can act on, and the exit code each ends the process with.

Contract: an error raised for bad input or a missing service names the thing, what was expected
and the remedy, in one message. The command line prints it without a traceback and exits with the
class's `exit_code`. Bugs are not MainspringErrors: they propagate with their traceback.

    MainspringError
    |- UsageError          bad input: a file, a field, an argument          exit 2
    |   |- ConfigError     a campaign file or a setting
    |   `- ModelError      a model directory that cannot be used
    |- ServiceError        a service that cannot be reached or is not fit   exit 3
    |   |- DatabaseError
    |   |- TemporalError
    |   |- EngineError     a policy engine
    |   `- SandboxError    see infra.sandbox.protocol for its kinds
    `- WorkFailed          the work ran and ended badly                     exit 4
"""


class MainspringError(Exception):
    """Base: `message` says what is wrong, `remedy` what to do next."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message


class UsageError(MainspringError):
    exit_code = 2


class ConfigError(UsageError):
    """A campaign file or a setting is not valid."""


class ModelError(UsageError):
    """A model directory lacks something or does not fit the campaign."""


class ServiceError(MainspringError):
    exit_code = 3


class DatabaseError(ServiceError):
    """Postgres cannot be reached, or is at another migration."""


class TemporalError(ServiceError):
    """Temporal cannot be reached or lacks what the project registers."""


class EngineError(ServiceError):
    """A policy engine cannot be reached or refused a request."""


class SandboxError(ServiceError):
    """A sandbox backend is missing or failed."""


class WorkFailed(MainspringError):
    exit_code = 4
