"""Errors of the connection to Postgres, put in one sentence with what to do about it.

Invariant: what is no fault of the connection, the server or a pooler passes as it is: it is a bug.
No sentence has the password. Used by `Database` and by what listens.
"""

import re
import ssl

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from infra.db.address import SETTING
from infra.db.session import CLOSED_AT_LOGIN
from mainspring.errors import DatabaseError

UPGRADE = "run `mainspring db upgrade`"
_DISK_FULL = "53100"
_TOO_MANY = "53300"
_UNDEFINED_TABLE = "42P01"
_DEADLOCK = "40P01"
_STATEMENT_TIMEOUT = ("57014", "canceling statement due to statement timeout")
_NO_STATEMENT = "26000"
_UNAVAILABLE = ("08", "53", "57P", "28", "3D", "25P03")
"""SQLSTATE beginnings: connection, resources, shutdown, refused log-in, no such database, a
transaction that stood still."""
_USUAL = f"check that Postgres runs there and {SETTING} is right, or run `mainspring up`"
_TLS = (
    ("certificate has expired", "its certificate has expired", "renew the server's certificate"),
    ("not yet valid", "its certificate is not valid yet", "set the clocks of both machines"),
    (
        "Hostname mismatch|IP address mismatch|doesn't match|not valid for",
        "its certificate names another host",
        f"put a name that the certificate has into {SETTING}, or use sslmode=verify-ca",
    ),
    (
        "self.signed certificate|unable to get (?:local )?issuer",
        "its certificate comes from an authority that is not in sslrootcert",
        f"give the file of the server's own authority as sslrootcert in {SETTING}",
    ),
    ("revoked", "its certificate is revoked", "give the server another certificate"),
    (
        "rejected SSL upgrade",
        "it speaks no TLS, and sslmode asks for it",
        f"switch ssl on at the server, or leave sslmode out of {SETTING}",
    ),
    (
        "KEY_VALUES_MISMATCH|key values mismatch",
        "sslkey does not belong to sslcert",
        "give the two files that were made together",
    ),
    (
        "NO_CERTIFICATE|PEM lib|bad decrypt|BAD_DECRYPT|bad password read",
        "a file of sslcert, sslkey or sslrootcert cannot be read as PEM",
        "check the file, and sslpassword where the key has one",
    ),
    (
        f"alert|certificate required|unknown ca|{CLOSED_AT_LOGIN}",
        "it ended the connection during the log-in, as those do that ask for TLS or for a client's "
        "certificate",
        f"see the server's log; sslmode=verify-full, and sslcert and sslkey, go into {SETTING}",
    ),
)
"""Text of OpenSSL or the driver, its meaning, and the remedy; the first that fits."""
_SERVER = (
    (
        "no encryption$|no encryption[^a-z]",
        "it takes encrypted connections alone, or not from here",
        f"add sslmode=verify-full and sslrootcert to {SETTING}; or mend its pg_hba.conf",
    ),
    (
        "valid client certificate",
        "it asks for a client's certificate",
        f"give sslcert and sslkey in {SETTING}",
    ),
    (
        r"unsupported startup parameter: (\w+)",
        "the pooler refuses the parameter {}",
        f"leave it out of {SETTING}, or name it in PgBouncer's ignore_startup_parameters and set "
        "it by ALTER ROLE",
    ),
    (
        "idle-in-transaction timeout",
        "this process stood still within a transaction, and the server ended its session",
        "what it did there is tried again; see what stopped the process or its machine",
    ),
    (
        "no more connections allowed|query_wait_timeout",
        "the pooler has no connection left",
        "raise PgBouncer's max_client_conn, default_pool_size or query_wait_timeout",
    ),
    (
        "transaction blocks not allowed",
        "the pooler is in statement mode, which has no transactions",
        "set PgBouncer's pool_mode to transaction or session",
    ),
)


class QueryTooLong(DatabaseError):
    """A query ran into the statement_timeout of its session."""


def classify(error: Exception, name: str) -> Exception:
    """The DatabaseError that `error` means, or `error` itself when the fault is in the program."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(cause, "sqlstate", None) or ""
    if state == _STATEMENT_TIMEOUT[0] and _STATEMENT_TIMEOUT[1] in str(cause):
        return QueryTooLong(
            f"database {name}: a query took longer than it may",
            remedy="try again when the database has less to do, or ask for less",
        )
    if state == _DISK_FULL:
        return DatabaseError(
            f"database {name}: the disk is full",
            remedy="free space on the database host; work resumes by itself",
        )
    if state == _TOO_MANY:
        return DatabaseError(
            f"database {name} has no connection left: {cause}",
            remedy="`SELECT application_name, count(*) FROM pg_stat_activity GROUP BY 1` tells who "
            "holds them; end some, or raise max_connections. Work resumes by itself",
        )
    if state == _DEADLOCK:
        return DatabaseError(
            f"database {name} ended a transaction that waited for another one, and that for it",
            remedy="it is tried again; an upgrade of the schema beside it is a usual cause",
        )
    if state == _UNDEFINED_TABLE:
        return DatabaseError(f"database {name} lacks tables: {cause}", remedy=UPGRADE)
    if state == _NO_STATEMENT:
        return DatabaseError(
            f"database {name}: a pooler between loses statements: {cause}",
            remedy="take PgBouncer in transaction or session mode, or the server's own address",
        )
    if isinstance(cause, asyncpg.ClientConfigurationError):
        return DatabaseError(
            f"database {name} cannot be asked: {cause.args[0]}",
            remedy=f"give it in {SETTING}, as sslrootcert=FILE for sslmode=verify-full",
        )
    if isinstance(cause, asyncpg.TargetServerAttributeNotMatched):
        return DatabaseError(
            f"database {name}: none of its hosts takes writes",
            remedy=f"wait for a standby to be promoted, or mend the hosts in {SETTING}",
        )
    explanation = _known(cause)
    if explanation is not None:
        return DatabaseError(
            f"database {name} cannot be used: {explanation[0]}", remedy=explanation[1]
        )
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if lost or isinstance(error, (OSError, PoolTimeoutError)) or state.startswith(_UNAVAILABLE):
        return DatabaseError(f"database {name} cannot be used: {_told(cause)}", remedy=_USUAL)
    return error


def _known(cause: BaseException | None) -> tuple[str, str] | None:
    """The meaning of what TLS, the server or a pooler tells, with its remedy."""
    message = str(cause)
    table = _TLS if isinstance(cause, (ssl.SSLError, ConnectionError)) else _SERVER
    for pattern, meaning, remedy in table:
        if match := re.search(pattern, message):
            return meaning.format(*match.groups()), remedy
    return None


def _told(cause: BaseException | None) -> str:
    """A timeout has no words of its own: the server takes connections and does not answer."""
    if isinstance(cause, TimeoutError) and not str(cause):
        return "it did not answer in time; its process may stand still or be overloaded"
    return f"{type(cause).__name__}: {cause}"
