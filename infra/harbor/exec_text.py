"""One command of an agent of Harbor as bash for the sandbox: folder, variables, command.

Pure; it knows nothing of Harbor. Imported by the environment beside this file.
"""

import shlex
from collections.abc import Mapping

from mainspring.errors import WorkFailed

USERS = (None, "root", 0, "0")
"""A sandbox has one user, who may do there all that a command may: agents ask for root to install,
and to hand files over to another user."""


class ExecRefused(WorkFailed):
    """A sandbox cannot run a command in the way that an agent asks for."""


def exec_text(
    command: str,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    user: str | int | None = None,
    prelude: str = "",
) -> str:
    """Raises ExecRefused."""
    if user not in USERS:
        raise ExecRefused(
            f"a command is to run as the user {user!r}, and a sandbox has one user",
            remedy="let the agent leave `user` out",
        )
    lines = [prelude] if prelude else []
    for name, value in sorted((env or {}).items()):
        if not (name.isascii() and name.isidentifier()):
            raise ExecRefused(
                f"a command is to get a variable with the name {name!r}",
                remedy="use letters, digits and _",
            )
        lines.append(f"export {name}={shlex.quote(value)}")
    if cwd is not None:
        lines.append(f"cd {shlex.quote(cwd)} || exit 1")
    return "\n".join([*lines, command])
