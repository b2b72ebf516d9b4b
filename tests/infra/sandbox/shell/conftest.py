"""The shell of a sandbox on a folder of this machine, as it meets an image's repository.

No isolation: what the agent does is done from outside, but for harmless commands."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from infra.sandbox.session import PATCH_BYTES, PATCH_FILE_BYTES
from infra.sandbox.shell.channel import CHANNEL_BYTES, CommandAnswer, Shell, ShellSetup

COMMIT = "git add -A && git -c user.name=a -c user.email=a@b commit -qm c"


class Folder:
    """A working tree of an image, booted at the first patch that is asked for."""

    def __init__(self, workdir: Path, run_dir: Path) -> None:
        self.workdir = workdir
        self._run_dir = run_dir
        self._shell: Shell | None = None

    def do(self, script: str) -> str:
        home = {"PATH": "/usr/bin:/bin", "HOME": str(self._run_dir.parent)}
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=self.workdir,
            env=home,
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        )
        return done.stdout

    async def boot(self, **variables: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            "bash",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=CHANNEL_BYTES,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self._run_dir.parent)} | variables,
        )
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None

        async def send(message: bytes) -> None:
            stdin.write(message)
            await stdin.drain()

        self._shell = Shell(stdout, send)
        setup = ShellSetup(str(self.workdir), str(self._run_dir), "ulimit -c 0", 1 << 20)
        booted = await self._shell.boot(setup, 60)
        assert booted.status == 0, booted.output

    async def call(self, function: str, *arguments: str) -> CommandAnswer:
        assert self._shell is not None
        return await self._shell.call(function, *arguments, timeout_s=60)

    async def patch(self) -> tuple[bytes, str]:
        """The patch, and what is told of it."""
        made = await self.call("patch", "60", str(PATCH_FILE_BYTES), str(PATCH_BYTES))
        assert made.status == 0
        left = await self.call("left_out", "2000")
        return made.output, left.output.decode().strip()


@pytest.fixture
async def repository(tmp_path):
    """/repo of an image, with a package below it."""
    workdir = tmp_path / "repo"
    workdir.mkdir()
    folder = Folder(workdir, tmp_path / "run")
    folder.do(
        f"""
        git init -q .; mkdir -p packages/foo packages/bar
        printf 'def add(a, b):\\n    return a - b\\n' | tee calc.py packages/foo/calc.py > /dev/null
        echo bar > packages/bar/b.py; printf '*.log\\nbuild/\\n' > .gitignore; {COMMIT}
        """
    )
    yield folder
    if hasattr(folder, "process"):
        folder.process.kill()
        await folder.process.wait()
