"""The embedded database as one file, by Postgres' own programs: written live, loaded anew.

Invariant: what is written is one moment of the database; what is loaded belongs to the account that
the new server runs as, and not to the one that made the file.
"""

from pathlib import Path

from infra.stack.postgres_server import DATABASE, Postgres
from mainspring.errors import DatabaseError

TAIL_CHARS = 800


def dump(postgres: Postgres, file: Path, snapshot: str) -> None:
    """Write what the transaction with this exported `snapshot` sees. Raises DatabaseError."""
    arguments = ("-d", DATABASE, "--format=custom", f"--snapshot={snapshot}", f"--file={file}")
    _run(postgres, "pg_dump", *arguments)


def load(postgres: Postgres, file: Path) -> None:
    """Fill the empty database of a server that runs. Raises DatabaseError."""
    _run(postgres, "pg_restore", "-d", DATABASE, "--no-owner", "--exit-on-error", str(file))


def _run(postgres: Postgres, program: str, *arguments: str) -> None:
    ended = postgres.run_client(program, *arguments)
    if ended.returncode != 0:
        raise DatabaseError(
            f"embedded Postgres: {program} failed: {ended.stderr.strip()[-TAIL_CHARS:]}",
            remedy=f"fix what it names, then repeat the command; see {postgres.daemon.log}",
        )
