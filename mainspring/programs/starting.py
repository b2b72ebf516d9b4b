"""Script that starts a program in a sandbox: its files, its variables and its command.

Pure; the same launch gives the same script. Used by the activity that runs programs.
"""

import base64
import shlex
from pathlib import PurePosixPath

from mainspring.programs.profile import Launch

INSTRUCTION = """\
Please fix this issue in the repository at {workdir}:

<issue>
{issue}
</issue>

Change the sources so that the issue is fixed in general, in the style of the code around it. Leave
tests and configuration files as they are: changes there do not count. Hidden tests will judge the
result. You cannot ask questions: when you are done, end.
"""


def instruction(issue: str, workdir: str) -> str:
    """Words that a program is told, as a user would type it."""
    return INSTRUCTION.format(workdir=workdir, issue=issue.strip())


def script(launch: Launch) -> str:
    """For bash. Its exit code is the command's; it reads nothing from standard input."""
    lines: list[str] = []
    for path, text in sorted(launch.files.items()):
        folder = shlex.quote(str(PurePosixPath(path).parent))
        packed = base64.b64encode(text.encode()).decode()
        lines.append(f"mkdir -p {folder} && base64 -d > {shlex.quote(path)} <<'END' || exit 126")
        lines += [packed, "END"]
    for name, value in sorted(launch.environment.items()):
        lines.append(f"export {name}={shlex.quote(value)}")
    lines += ["{", launch.command, "} < /dev/null"]
    return "\n".join(lines)
