"""A task of the kind "swe": one issue to fix, the repository it is in, and the hidden tests that
judge the fix.

Pure data. Hidden tests never enter the agent's sandbox; only grading writes them, into a fresh one.
"""

import re
from pathlib import PurePosixPath
from typing import Literal, Self

from pydantic import AwareDatetime, Field, field_validator, model_validator

from mainspring.errors import UsageError
from mainspring.tasks.allow_list import AllowList
from mainspring.tasks.criterion import ExitCode, Judge
from mainspring.tasks.task import Task

SWE = "swe"


class SweTask(Task):
    kind: Literal["swe"] = SWE
    image: str | None = None
    """Docker image with the repository inside at `workdir`; None: `files` are the repository."""
    workdir: str = "/testbed"
    files: dict[str, str] = Field(default_factory=dict)
    """Repository-relative path to text, for tasks without an image."""
    executables: tuple[str, ...] = ()
    """Those of `files` and `tests` with the executable bit (mode 755)."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Variables of all commands in its sandboxes, beside those of the image."""
    base_patch: str = ""
    """Git patch that makes the image's repository the task's: it brings the bug. The repository's
    history then begins with its result. Paths of all patches count from `workdir`."""
    hidden_files: tuple[str, ...] = ()
    """Files and folders of the image that the agent does not get: relative to `workdir`, or
    absolute. Grading has them."""
    tests: dict[str, str] = Field(default_factory=dict)
    """Hidden test files laid over `workdir` at grading."""
    test_patch: str = ""
    """Git patch with the hidden tests, applied at grading after the agent's."""
    test_command: str
    """Run with bash in `workdir` at grading; `judge` defines what its output means."""
    judge: Judge = ExitCode()
    gold_patch: str | None = None
    """The true fix; never in a sandbox but to verify the task."""
    solution: dict[str, str] = Field(default_factory=dict)
    """Where the true fix is a script: files for /solution, run by `solve.sh`."""
    allow_hosts: tuple[str, ...] = ()
    """All its sandboxes may reach, as `mainspring.tasks.allow_list` reads it: "pypi.org:443"."""
    clock: AwareDatetime | None = None
    """Time that its sandboxes' commands read when they open: "2024-05-01T12:00:00Z"."""

    @model_validator(mode="after")
    def _has_a_repository(self) -> Self:
        if self.image is None and not self.files:
            raise ValueError(f"task {self.id!r} has neither an image nor files")
        if self.image is None and (self.base_patch or self.hidden_files):
            raise ValueError(f"task {self.id!r}: base_patch and hidden_files are for images")
        return self

    @field_validator("allow_hosts")
    @classmethod
    def _hosts_can_be_meant(cls, allow_hosts: tuple[str, ...]) -> tuple[str, ...]:
        try:
            AllowList.parse(allow_hosts)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return allow_hosts

    @field_validator("variables")
    @classmethod
    def _variables_can_be_set(cls, variables: dict[str, str]) -> dict[str, str]:
        for name, value in variables.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
                raise ValueError(f"{name[:60]!r} cannot be a variable of the environment")
        return variables

    @field_validator("hidden_files")
    @classmethod
    def _hidden_files_are_below(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            parts = PurePosixPath(path).parts
            if not set(parts) - {"/"} or ".." in parts or ".git" in parts or "\0" in path:
                raise ValueError(f"{path!r} is not a file or folder that can be hidden")
        return paths
