"""A Python function of one's own that plays rollouts: what it is called with and may return.

Invariants: the function is code of the campaign's user and is called by keyword, so it takes any
part of PARAMETERS; of a task it sees what an agent may see and nothing that judges it. Pure, but
that finding a function imports its module. Imported by commands, which check it, and by the process
that calls it.
"""

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mainspring.config.registry import Registry
from mainspring.errors import ConfigError, WorkFailed
from mainspring.status import FaultKind
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SweTask

FUNCTION = "function"
"""The `agent.kind` of a function."""
PARAMETERS = ("task", "model_url", "key", "sandbox", "options", "rollout", "life")
RESULT_BYTES = 16 << 20
_SHAPE = "write it as `async def name(task, model_url, key)`"


class FunctionFailed(WorkFailed):
    """The function raised, ended its process, or returned what cannot be used: its rollout tells
    nothing about the policy."""

    fault = FaultKind.FUNCTION_FAILED


@dataclass(frozen=True, slots=True)
class Ran:
    """Outcome of a command in the rollout's sandbox."""

    returncode: int
    """-1 when it was killed at its timeout."""
    output: str
    """stdout and stderr as they were written."""
    timed_out: bool = False
    truncated: bool = False
    """The middle of the output is left out."""


class FunctionSandbox(Protocol):
    """Sandbox that a function gets as `sandbox`, for tasks with a repository."""

    async def run(self, command: str, *, timeout_s: float | None = None) -> Ran:
        """Run bash in the repository, once; commands that are asked for together run one after the
        other. `timeout_s`: at most `agent.command_timeout_s`, which is the default."""
        ...


@dataclass(frozen=True, slots=True)
class Returned:
    """Value that a function returned, as it is stored."""

    data: bytes
    type: str
    """Name of its Python type."""
    is_number: bool = False


def _can_be_called(what: str, function: Any) -> None:
    """Raises ConfigError."""
    if not inspect.iscoroutinefunction(function):
        is_plain = inspect.isfunction(function)
        kind = "not async" if is_plain else f"a {type(function).__name__}"
        raise ConfigError(f"{what} is {kind}, expected an async function", remedy=_SHAPE)
    unknown = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and (parameter.name not in PARAMETERS or parameter.kind is parameter.POSITIONAL_ONLY)
    ]
    if unknown:
        raise ConfigError(
            f"{what} needs {', '.join(unknown)}, which it is not given by name",
            remedy=f"its parameters are {', '.join(PARAMETERS)}: take those that it needs, or give "
            "others a default",
        )


FUNCTIONS: Registry[Callable[..., Any]] = Registry("function", require=_can_be_called)
"""Functions of your own, which are named by their paths only."""


def find_function(path: str) -> Callable[..., Any]:
    """Raises ConfigError when there is none that can be called."""
    FUNCTIONS.check(path)
    return FUNCTIONS.find(path)


def arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `values` that it takes."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(values)
    return {name: value for name, value in values.items() if name in parameters}


def visible(task: AnyTask) -> AnyTask:
    """The task without its hidden tests, its true fix, and what tells of them."""
    if not isinstance(task, SweTask):
        return task
    # What may be seen is listed, so that a field that is added later is hidden.
    return SweTask(
        id=task.id,
        source=task.source,
        split=task.split,
        issue=task.issue,
        image=task.image,
        workdir=task.workdir,
        files=task.files,
        allow_hosts=task.allow_hosts,
        clock=task.clock,
        test_command="",
    )


def returned(value: Any) -> Returned:
    """Bytes as they are, text as UTF-8, everything else as JSON. Raises ValueError."""
    name = type(value).__name__
    if value is None:
        raise ValueError("returned None: has it forgotten its `return`?")
    if isinstance(value, bytes | bytearray):
        data = bytes(value)
    elif isinstance(value, str):
        data = value.encode(errors="surrogatepass")
    else:
        try:
            data = json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"returned a {name} that is neither bytes, text nor JSON: {error}"
            ) from None
    if len(data) > RESULT_BYTES:
        raise ValueError(f"returned {len(data)} bytes, at most {RESULT_BYTES} are stored")
    return Returned(data, name, isinstance(value, int | float))


def require_number(result: Returned) -> None:
    """Where no class judges it. Raises ValueError."""
    if not result.is_number:
        raise ValueError(f"returned a {result.type}, expected a number")
    stored_score(result.data)


def stored_score(data: bytes) -> float:
    """The number that a function returned, as stored. Raises ValueError."""
    try:
        score = float(json.loads(data))
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"returned {data[:80]!r}, expected a number of usual size") from None
    if not math.isfinite(score):
        raise ValueError(f"returned {score}, expected a finite number")
    return score
