"""Sandboxes by bubblewrap: the host's own programs, read-only, around a working tree on its disk.

For tasks without an image, where no Docker daemon is needed. One bwrap per sandbox, with bash as
process 1 of its namespaces. Each sandbox is a directory under `<state_dir>/open`, named by its id,
so that the next process after a crash resumes or removes it, and its control group with it.
Imported by the sandbox activities through `infra.sandbox.backends`.
"""

import asyncio
import contextlib
import os
import platform
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from infra.sandbox import clock
from infra.sandbox.bubblewrap import cgroup, seccomp
from infra.sandbox.bubblewrap.cgroup import Cgroup
from infra.sandbox.bubblewrap.command import Bind, command_line, filter_fds, make_etc
from infra.sandbox.bubblewrap.contents import Contents
from infra.sandbox.bubblewrap.disk_guard import guard
from infra.sandbox.bubblewrap.hidden_shell import HiddenShell
from infra.sandbox.bubblewrap.owner import Owner, owner_of
from infra.sandbox.bubblewrap.process import ConfinedShell, NoProcess, kill_leftover
from infra.sandbox.bubblewrap.repository import COMMIT_SCRIPT, RepositoryCache, has_rules
from infra.sandbox.bubblewrap.trial import Trial
from infra.sandbox.mounts import checked_mounts
from infra.sandbox.node_faults import blamed, blamed_for
from infra.sandbox.protocol import (
    BackendUnavailable,
    Limits,
    Sandbox,
    SandboxBroken,
    SandboxLost,
    SandboxRefused,
    SandboxSpec,
)
from infra.sandbox.session import Handle, LiveSandbox
from infra.sandbox.shell.channel import OWN_PROCESSES, ShellSetup
from infra.sandbox.variables import exports
from mainspring.ids import SandboxId
from mainspring.protocol.timeouts import BWRAP_BOOT_TIMEOUT_S
from mainspring.tasks.sandbox_choice import BWRAP

_FILTER = (
    "no system calls for namespaces, mounts, keys, bpf, io_uring, modules or clocks, nor any newer "
    "than the filter; no sockets but local, IP and netlink ones; no 32-bit programs (seccomp)"
)
_NO_FILTER = f"no seccomp filter for {platform.machine()}: every system call is reachable"
_FILTERED = seccomp.program() is not None
ENFORCED: tuple[str, ...] = (
    "no network beyond a task's allow_hosts, no capabilities",
    "no host processes, environment or files beyond /usr and Python",
    "max_pids: processes of one sandbox (RLIMIT_NPROC)",
    "memory_mb: data of each process (RLIMIT_DATA), a quarter of it each /tmp, /dev/shm and home",
    "disk_mb: size of each file (RLIMIT_FSIZE); of all together by killing commands, in seconds",
    "cpus: CPU time of each process, the command's timeout times cpus (RLIMIT_CPU)",
    *([_FILTER] if _FILTERED else []),
)
"""On every machine. What `cgroup.available()` has comes on top, and what it lacks is missing."""
NOT_ENFORCED: tuple[str, ...] = (
    "disk_mb of deleted files that a process holds open",
    *([] if _FILTERED else [_NO_FILTER]),
)
MEMORY_PER_TMP = 4
"""How much more memory_mb is than each of the three file systems in memory. A control group counts
both, and were it full of files, killing processes would free nothing, and end with the shell."""
SPARE_PIDS = 2
"""Pids of a control group beyond RLIMIT_NPROC: a full sandbox fails as it would without one."""
RUN_DIR = "/run/mainspring/run"
PREPARED_DIR = "/run/mainspring/prepared"
SHELL = "/run/mainspring/shell"
_WRITABLE = ("work", "run", "more")
"""Parts of a sandbox's directory that its commands can write to."""
MAX_NAME_BYTES = 255
TRASH_S = 0.2
"""One program removes what all sandboxes leave that close in this time."""


class BwrapBackend:
    """All sandboxes of one node that live in `state_dir`."""

    name: str = BWRAP
    not_enforced = NOT_ENFORCED

    def __init__(self, state_dir: Path) -> None:
        state_dir = state_dir.absolute()
        self._open_dir = state_dir / "open"
        self._trash = state_dir / "trash"
        for directory in (self._open_dir, self._trash):
            directory.mkdir(parents=True, exist_ok=True)
        loader = Path("/etc/ld.so.cache")
        version = loader.stat().st_mtime_ns if loader.exists() else 0
        self._etc = Bind(state_dir / f"etc-{version}", "/etc")
        make_etc(self._etc.source)
        self._shell = HiddenShell(state_dir)
        self._repositories = RepositoryCache(
            state_dir / "repositories", self._commit, self._open_dir
        )
        self._groups = cgroup.available()
        self._live: dict[SandboxId, LiveSandbox] = {}
        self._locks: WeakValueDictionary[SandboxId, asyncio.Lock] = WeakValueDictionary()
        self._trial = Trial(state_dir / "trials", self._etc)
        self._deleter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trash")
        self._deleter.submit(self._empty_trash)
        self._deleter.submit(self._groups.sweep)

    async def probe(self) -> None:
        """Run the programs tasks need in a real sandbox. Raises BackendUnavailable."""
        returncode, output = await self._try(
            "set -e; git --version; tar --version; python3 --version"
        )
        if returncode != 0:
            raise BackendUnavailable(
                f"bubblewrap cannot make a sandbox here: {output}",
                remedy="allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
                "kernel.unprivileged_userns_clone=1, "
                "kernel.apparmor_restrict_unprivileged_userns=0), in a container run with "
                "--security-opt seccomp=unconfined and systempaths=unconfined (as root also "
                "--cap-add SYS_ADMIN and NET_ADMIN), and install git, tar and util-linux; or "
                "give tasks an image and start Docker",
            )

    async def contents(self) -> Contents:
        """Contents of the sandbox of a task without an image. Raises BackendUnavailable."""
        returncode, output = await self._try(Contents.COMMAND)
        if returncode != 0:
            raise BackendUnavailable(f"a sandbox cannot be looked at: {output}")
        return Contents.read(output)

    async def _try(self, command: str) -> tuple[int | None, str]:
        """In a sandbox without a repository: its return code, and what it printed."""
        with filter_fds() as filters:
            process = await asyncio.create_subprocess_exec(
                *command_line(
                    owner_of("probe"),
                    [self._etc],
                    tmp_mb=16,
                    command=["bash", "-c", command],
                    filters=filters,
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=filters,
                env={"PATH": os.defpath},
            )
        output, _ = await process.communicate()
        return process.returncode, output.decode(errors="replace").strip()

    async def open(self, spec: SandboxSpec) -> Sandbox:
        if spec.image is not None:
            raise SandboxRefused(
                f"sandbox {spec.id}: bubblewrap cannot run image {spec.image}",
                remedy="start a Docker daemon on this node",
            )
        async with self._lock(spec.id):
            await self._discard(spec.id)
            owner = owner_of(spec.id, is_mapped=await self._trial.may_map())
            home = self._home(spec.id)
            try:
                prepared = await self._fill(home, spec, owner)
                return await self._start(home, prepared, spec, owner)
            except OSError as error:
                await self._discard(spec.id)
                raise blamed_for(
                    f"sandbox {spec.id}: its files cannot be written: {error}",
                    error,
                    remedy="compare the names of the task's files with those a file system takes",
                ) from error
            except BaseException:
                await self._discard(spec.id)
                raise

    async def attach(self, spec: SandboxSpec, busy_s: float) -> Sandbox:
        async with self._lock(spec.id):
            home = self._home(spec.id)
            try:
                process = await ConfinedShell.adopt(home)
                sandbox = self._register(home, process, spec)
                await sandbox.let_out()
            except (NoProcess, FileNotFoundError) as gone:
                raise SandboxLost(
                    f"sandbox {spec.id} is not on this node any more: {gone}",
                    remedy="open it again and replay the recorded commands",
                ) from None
            sandbox.rejoin(busy_s)
            return sandbox

    async def rename(self, sandbox: SandboxId, spec: SandboxSpec) -> Sandbox:
        async with self._lock(spec.id):
            await self._discard(spec.id)
            live = self._live.pop(sandbox, None)
            if live is None:
                raise SandboxLost(f"sandbox {sandbox}, to become {spec.id}, is gone")
            self._live[spec.id] = live
            live.rename(spec)
            self._home(sandbox).rename(self._home(spec.id))
            return live

    async def list_open(self) -> list[SandboxId]:
        return [SandboxId(unquote(path.name)[1:]) for path in self._open_dir.iterdir()]

    async def remove(self, sandbox: SandboxId) -> None:
        async with self._lock(sandbox):
            await self._discard(sandbox)

    def _lock(self, sandbox: SandboxId) -> asyncio.Lock:
        return self._locks.setdefault(sandbox, asyncio.Lock())

    def _home(self, sandbox: SandboxId) -> Path:
        name = quote(f"={sandbox}", safe="=")  # the sign keeps "." and ".." ordinary names
        if len(name) > MAX_NAME_BYTES:
            raise SandboxRefused(f"sandbox id {sandbox!r} is too long for a directory name")
        return self._open_dir / name

    async def _fill(self, home: Path, spec: SandboxSpec, owner: Owner) -> Path:
        """Make the sandbox's directories; the repository that goes in is returned."""
        contents = spec.files, spec.executables
        prepared = self._repositories.find(*contents)
        if prepared is None:
            prepared = await asyncio.to_thread(self._repositories.prepare, *contents)
        more = [home / "more" / str(number) for number in range(len(spec.writable_dirs))]
        for directory in (home, *(home / name for name in _WRITABLE), *more):
            directory.mkdir()
            directory.chmod(0o755)
            if owner.uid is not None and directory != home:
                os.chown(directory, owner.uid, owner.uid)
        self._repositories.lend(prepared, home, owner.uid)
        for name, content in zip(("passwd", "group"), owner.accounts(), strict=True):
            (home / name).write_text(content)
            (home / name).chmod(0o644)
        return prepared

    async def _start(
        self, home: Path, prepared: Path, spec: SandboxSpec, owner: Owner
    ) -> LiveSandbox:
        binds = [
            self._etc,
            Bind(home / "passwd", "/etc/passwd"),
            Bind(home / "group", "/etc/group"),
            Bind(prepared, PREPARED_DIR),
            Bind(home / "run", RUN_DIR, writable=True),
            Bind(home / "work", spec.workdir, writable=True),
            *(
                Bind(home / "more" / str(number), top, writable=True)
                for number, top in enumerate(spec.writable_dirs)
            ),
        ]
        if (shell := await asyncio.to_thread(self._shell.find)) is not None:
            binds.append(Bind(shell, SHELL))
        binds += [Bind(folder, inside) for inside, folder in checked_mounts(spec)]
        if spec.clock is not None:
            binds.append(Bind(clock.library(), clock.INSIDE))
        setup = ShellSetup(
            workdir=spec.workdir,
            run_dir=RUN_DIR,
            limits=_ulimits(spec.limits),
            variables=exports(spec),
            output_bytes=spec.limits.output_bytes,
            prepared=PREPARED_DIR,
            has_rules=has_rules(spec.files),
            is_hidden=shell is not None,
        )
        program = "bash" if shell is None else SHELL
        try:
            tmp_mb = max(1, spec.limits.memory_mb // MEMORY_PER_TMP)
            process = await ConfinedShell.spawn(home, owner, binds, tmp_mb, program)
        except NoProcess as ended:
            if not str(ended):
                raise SandboxBroken(f"sandbox {spec.id}: bwrap was killed") from None
            raise blamed(
                f"sandbox {spec.id} at {spec.workdir}: {ended}",
                str(ended),
                remedy="run `mainspring doctor` on this node",
            ) from None
        sandbox = self._register(home, process, spec)
        try:
            # At once: the kernel takes its time to move a process, which boots meanwhile.
            await asyncio.gather(
                self._enclose(home, process, spec), sandbox.boot(setup, BWRAP_BOOT_TIMEOUT_S)
            )
            await sandbox.let_out()
            await sandbox.ping()  # what serves its turns starts now
        except SandboxBroken as broken:
            await sandbox.close()
            if "bwrap: " not in broken.message:  # the shell itself prints nothing there
                raise
            raise blamed(
                f"{broken.message} (working tree {spec.workdir})",
                broken.message,
                remedy="run `mainspring doctor` on this node",
            ) from None
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _enclose(self, home: Path, process: ConfinedShell, spec: SandboxSpec) -> None:
        """Before the shell has commands to run: all it starts is in the group with it."""
        try:
            await asyncio.to_thread(
                self._groups.enclose, home, process.pid, spec.limits, OWN_PROCESSES + SPARE_PIDS
            )
        except ProcessLookupError:
            pass  # what it said when it ended is still to be read
        except OSError as error:
            raise SandboxBroken(
                f"sandbox {spec.id}: it cannot have a control group: {error}",
                remedy="run `mainspring doctor` on this node",
            ) from error

    def _register(self, home: Path, process: ConfinedShell, spec: SandboxSpec) -> LiveSandbox:
        inode = home.stat().st_ino

        def find() -> list[Path]:
            return [self._home(sandbox.id) / name for name in _WRITABLE]

        guarding = asyncio.create_task(guard(find, process.pid, spec.limits.disk_mb))

        async def destroy() -> None:
            guarding.cancel()
            await process.kill()
            await self._delete_home(self._home(sandbox.id), inode)
            if self._live.get(sandbox.id) is sandbox:
                del self._live[sandbox.id]

        handle = Handle(destroy, process.find_pid, process.interrupt)
        sandbox = LiveSandbox(spec, RUN_DIR, process.shell, handle)
        self._live[spec.id] = sandbox
        return sandbox

    async def _discard(self, sandbox: SandboxId) -> None:
        """End and delete whatever has this id, made by this process or another."""
        if (live := self._live.pop(sandbox, None)) is not None:
            await live.close()
        home = self._home(sandbox)
        if home.exists():
            await kill_leftover(home)
            await self._delete_home(home)

    async def _delete_home(self, home: Path, inode: int | None = None) -> None:
        """The name is free at once; `inode` spares a successor under the same name."""
        doomed = self._trash / uuid.uuid4().hex
        with contextlib.suppress(FileNotFoundError):
            if inode is None or home.stat().st_ino == inode:
                group = Cgroup.load(home)
                home.rename(doomed)
                await asyncio.to_thread(group.remove)
                self._deleter.submit(self._empty_trash)

    def _empty_trash(self) -> None:
        if not any(self._trash.iterdir()):
            return
        time.sleep(TRASH_S)
        doomed = [str(path) for path in self._trash.iterdir()]
        for path in doomed:
            Cgroup.load(Path(path)).remove()  # who threw it away may have died before that
        # A program and not rmtree: it takes no turn of this interpreter, and no depth stops it.
        remove = ["rm", "-rf", "--", *doomed]
        if subprocess.run(remove, check=False, capture_output=True).returncode != 0:
            # directories an agent made unreadable for its own user
            subprocess.run(["chmod", "-R", "u+rwX", "--", *doomed], check=False)
            subprocess.run(remove, check=False)

    def _commit(self, directory: Path) -> None:
        """Run COMMIT_SCRIPT in `directory`, confined: its files are a task's, not ours."""
        owner = owner_of("prepare")
        if owner.uid is not None:
            for path in (directory, *directory.rglob("*")):
                os.chown(path, owner.uid, owner.uid)
        script = f"cd {PREPARED_DIR}; {COMMIT_SCRIPT}"
        binds = [self._etc, Bind(directory, PREPARED_DIR, writable=True)]
        with filter_fds() as filters:
            ran = subprocess.run(
                command_line(
                    owner, binds, tmp_mb=16, command=["bash", "-c", script], filters=filters
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=filters,
                env={"PATH": os.defpath},
                check=False,
            )
        if ran.returncode != 0:
            output = ran.stdout.decode(errors="replace").strip()
            if not output:  # it was killed: git and bwrap name their reasons
                raise SandboxBroken(f"committing a task's files ended with {ran.returncode}")
            raise blamed(f"the task's files cannot be committed to git: {output}", output)


def _ulimits(limits: Limits) -> str:
    pids = limits.max_pids + OWN_PROCESSES
    return f"ulimit -c 0 -u {pids} -d {limits.memory_mb << 10} -f {limits.disk_mb << 10}"
