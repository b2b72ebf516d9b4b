"""A rollout's sandbox as an environment of Harbor.

Invariants: the sandbox is opened and closed by its node, so `start` and `stop` do neither; a
command runs once, one at a time, and is killed with its process group at its timeout, which is told
as exit code 124. Imports Harbor: only the process of a rollout, and the one that checks a campaign,
import it.
"""
# pyright: reportMissingImports=false

from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import EnvironmentPaths, TrialPaths

from infra.harbor.exec_text import exec_text
from infra.harbor.sandbox_files import SandboxFiles
from mainspring.errors import WorkFailed
from mainspring.programs.functions import FunctionSandbox

TIMED_OUT = 124
KILLED = (137, -9)
"""SIGKILL, as bash and Python tell it: the kernel's or a person's doing, not the client's."""
TAIL_CHARS = 2000
_X_BITS = 0o111


class SandboxEnvironment(BaseEnvironment):
    def __init__(
        self, sandbox: FunctionSandbox, name: str, workdir: str, folder: Path, prelude: str | None
    ) -> None:
        """`folder`: of this process, for what an agent writes beside the sandbox; `prelude`: bash
        before each command of an agent whose client runs in the sandbox, None for others."""
        self._sandbox = sandbox
        self._files = SandboxFiles(sandbox)
        self._prelude = prelude or ""
        self._is_inside = prelude is not None
        self.was_killed = False
        """A client in the sandbox ended by SIGKILL."""
        paths = TrialPaths(folder)
        paths.mkdir()
        super().__init__(
            environment_dir=folder,
            environment_name=name,
            session_id=name,
            trial_paths=paths,
            task_env_config=EnvironmentConfig(workdir=workdir),
            network_policy=NetworkPolicy(network_mode=NetworkMode.NO_NETWORK),
        )

    @staticmethod
    def type() -> str:
        return "mainspring"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        """The task defines it, and its node has opened it."""

    async def start(self, force_build: bool = False) -> None:
        """Make the folders that agents take for given. Raises WorkFailed."""
        paths = EnvironmentPaths()
        ran = await self.ensure_dirs([paths.agent_dir, paths.verifier_dir, paths.artifacts_dir])
        if ran is not None and ran.return_code != 0:
            raise WorkFailed(
                f"{paths.logs_dir} of the sandbox cannot be written: {(ran.stdout or '').strip()}",
                remedy="let the sandbox backend make the spec's `writable_dirs`",
            )

    async def stop(self, delete: bool = True) -> None:
        """Its node closes it."""

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        text = exec_text(
            command, cwd, self._merge_env(env), self._resolve_user(user), self._prelude
        )
        ran = await self._sandbox.run(text, timeout_s=timeout_sec)
        if self._is_inside:
            print(ran.output[-TAIL_CHARS:], end="")  # the end of it is kept with the rollout
        if ran.timed_out:
            return ExecResult(
                stdout=ran.output, stderr="killed at its timeout", return_code=TIMED_OUT
            )
        self.was_killed |= self._is_inside and ran.returncode in KILLED
        return ExecResult(stdout=ran.output, stderr=None, return_code=ran.returncode)

    async def put(self, text: str, path: str) -> None:
        """A file of its own making."""
        await self._files.put(text.encode(), path)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        mode = 0o755 if source.stat().st_mode & _X_BITS else 0o644
        target = str(target_path)
        if target.endswith("/") or await self.is_dir(target):
            target = f"{target.rstrip('/')}/{source.name}"
        await self._files.put(source.read_bytes(), target, mode)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._files.put_folder(Path(source_dir), str(target_dir))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        target = Path(target_path)
        if target.is_dir():
            target /= Path(source_path).name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(await self._files.get(str(source_path)))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._files.get_folder(str(source_dir), Path(target_dir))
