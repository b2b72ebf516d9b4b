"""The address of a Postgres server: a postgresql:// URL with libpq's parameters.

Invariant: each parameter is passed on, done here or refused by name; none is ignored, and no
message has a password. A URL means here what it means to psql. Used by every connection to the
store.
"""

import configparser
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlencode

from infra.tcp import KeepAlive
from mainspring.errors import ConfigError
from mainspring.protocol.timeouts import (
    PROBE_EVERY_S,
    PROBE_IDLE_S,
    PROBES_LOST,
    SILENT_PEER_S,
)

CONNECT_TIMEOUT_S = 10.0
PORT = 5432
SETTING = "MAINSPRING_DATABASE_URL"
APPLICATION = "mainspring"
"""Name of our connections in the server's list."""
_URL = re.compile(
    r"postgres(?:ql)?(?:\+\w+)?://(?:(?P<user>[^:/@?]*)(?::(?P<password>[^@?]*))?@)?"
    r"(?P<hosts>[^/?@]*)(?:/(?P<dbname>[^?]*))?(?:\?(?P<query>[^@]*))?"
)
"""No raw @ after a ?: it may be the rest of a password."""
_HOST = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d*))?")

_BY_DRIVER = frozenset(
    (
        *("sslmode", "sslnegotiation", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl"),
        *("ssl_min_protocol_version", "ssl_max_protocol_version", "passfile"),
        *("target_session_attrs", "krbsrvname", "gsslib"),
    )
)
"""Parameters that asyncpg reads from a URL, as libpq does."""
_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl", "passfile")
_TLS_VERSIONS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_VALUES = {
    "sslmode": _SSL_MODES,
    "sslnegotiation": ("postgres", "direct"),
    "ssl_min_protocol_version": _TLS_VERSIONS,
    "ssl_max_protocol_version": _TLS_VERSIONS,
    # The store is written to.
    "target_session_attrs": ("any", "primary", "read-write"),
    "gsslib": ("gssapi", "sspi"),
    "keepalives": ("0", "1"),
}
"""Values of what is passed on or done here; any where none are listed."""
_MEANS_NOTHING = {
    "channel_binding": ("disable", "prefer"),
    "gssencmode": ("disable", "prefer"),
    "gssdelegation": ("0",),
    "sslcompression": ("0",),
    "sslcertmode": ("allow",),
    "sslsni": ("1",),
    "client_encoding": ("utf8", "utf-8", "UTF8", "UTF-8", "auto"),
    "load_balance_hosts": ("disable",),
    "min_protocol_version": ("3.0",),
    "max_protocol_version": ("3.0", "3.2", "latest"),
    "replication": ("false", "off", "no", "0"),
}
"""Values with which a parameter asks for nothing but what is done anyway; others are refused."""
_REMEDIES = {
    "channel_binding": "leave it out; sslmode=verify-full with sslrootcert also keeps out a server "
    "between",
    "gssencmode": "leave it out, and encrypt by sslmode=verify-full",
    "hostaddr": "give the address as the host; for sslmode=verify-full a certificate must name it",
    "load_balance_hosts": "leave it out: hosts are tried in their order",
    "sslcrldir": "give one file as sslcrl",
    "sslkeylogfile": "set SSLKEYLOGFILE in the environment",
    "pgbouncer": "leave it out: a pooler is recognised without it",
    "target_session_attrs": "the store is written to: use primary, read-write or any",
    "client_encoding": "leave it out: the driver speaks UTF-8",
}
_USUAL_HOSTS = ("/run/postgresql", "/tmp", "localhost")
_SYSTEM_CAS = (
    ssl.get_default_verify_paths().cafile,
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
)


USUAL_KEEP_ALIVE = KeepAlive(
    idle_s=int(PROBE_IDLE_S),
    interval_s=int(PROBE_EVERY_S),
    count=PROBES_LOST,
    user_timeout_ms=int(SILENT_PEER_S * 1000),
)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    hosts: tuple[tuple[str, int], ...]
    """Host, or the folder of a socket, and port, in the order in which they are tried. Empty: the
    usual sockets of this machine, then its loopback."""
    user: str | None
    password: str | None = field(repr=False)
    database: str | None
    connect_timeout_s: float
    """For one host."""
    startup: Mapping[str, str]
    """Settings of the session that the server is given with the log-in."""
    driver: Mapping[str, str] = field(repr=False)
    """Parameters that the driver reads."""
    keep_alive: KeepAlive

    @property
    def name(self) -> str:
        """host:port/database, for messages."""
        hosts = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts
        )
        hosts = hosts or f"localhost:{PORT}"
        return f"{hosts}/{self.database or self.user or ''}"

    @property
    def is_unnamed(self) -> bool:
        """Whether the URL leaves the name of its connections to us."""
        return self.startup["application_name"] == APPLICATION

    @property
    def tried(self) -> tuple[tuple[str, int], ...]:
        """Hosts to try, in their order."""
        return self.hosts or tuple((host, PORT) for host in _USUAL_HOSTS)

    def keywords(self) -> dict[str, Any]:
        """Arguments of `asyncpg.connect`, beside a host and its port."""
        return {
            "dsn": f"postgresql://?{urlencode(self.driver)}" if self.driver else None,
            "user": self.user,
            "password": self.password,
            "database": self.database,
            "timeout": self.connect_timeout_s,
            "server_settings": dict(self.startup),
        }


def read_address(url: str) -> ServerAddress:
    """The address that a URL means. Raises ConfigError naming a parameter that cannot be had."""
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigError(
            "the database URL is not a postgresql:// URL",
            remedy=f"set {SETTING} to postgresql://user:password@host:port/name, where "
            "@ : / and ? of a user or password are written %40 %3A %2F %3F, or run `mainspring up`",
        )
    parameters = {
        name: unquote(match[name]) for name in ("user", "password", "dbname") if match[name]
    }
    parameters |= _parameters(match["query"] or "")
    parameters = _with_service(parameters)
    hosts = _hosts(match["hosts"] or "", parameters.pop("host", ""), parameters.pop("port", ""))
    if not hosts:
        hosts = _hosts("", os.environ.get("PGHOST", ""), os.environ.get("PGPORT", ""))
    startup = {"application_name": APPLICATION}
    for name in ("fallback_application_name", "application_name", "options"):
        if name in parameters:
            startup[name.removeprefix("fallback_")] = parameters.pop(name)
    user, password = parameters.pop("user", None), parameters.pop("password", None)
    database = parameters.pop("dbname", None)
    timeout_s = float(_number(parameters, "connect_timeout", int(CONNECT_TIMEOUT_S)))
    if timeout_s <= 0:
        _refuse(
            "connect_timeout", "give seconds: a host that is gone would be waited for endlessly"
        )
    keep_alive = _keep_alive(parameters)
    driver = _for_driver(parameters)
    return ServerAddress(
        hosts=hosts,
        user=user,
        password=password,
        database=database,
        connect_timeout_s=timeout_s,
        startup=startup,
        driver=driver,
        keep_alive=keep_alive,
    )


def place(url: str) -> str:
    """The host, port and database of a URL, for screens; its words when it cannot be read."""
    try:
        return read_address(url).name if url else ""
    except ConfigError as error:
        return error.message


def _parameters(query: str) -> dict[str, str]:
    """Parameters of the query; empty ones mean their default, as to libpq."""
    parameters: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        name, value = unquote(name), unquote(value)
        if not equals:
            _refuse(name, "write NAME=VALUE")
        if name == "ssl":  # JDBC's, which libpq takes too
            name, value = "sslmode", "require" if value == "true" else value
        parameters[name] = value
    return {name: value for name, value in parameters.items() if value}


def _with_service(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters, with those of the named service for what is not given."""
    rest = dict(parameters)
    service, file = rest.pop("service", ""), rest.pop("servicefile", "")
    if not service:
        return rest
    path = Path(file or os.environ.get("PGSERVICEFILE", "~/.pg_service.conf")).expanduser()
    services = configparser.ConfigParser(interpolation=None)
    try:
        services.read_string(path.read_text())
        return {**services[service], **rest}
    except (OSError, KeyError, configparser.Error) as error:
        reason = f"it has no section [{service}]" if isinstance(error, KeyError) else str(error)
        _refuse("service", f"its file {path} cannot be used: {reason}")


def _hosts(netloc: str, hosts: str, ports: str) -> tuple[tuple[str, int], ...]:
    """Hosts of the URL, or else of its parameters, each with its port."""
    pairs: list[tuple[str, str]] = []
    for entry in (netloc or hosts).split(","):
        entry = unquote(entry)
        if entry.startswith("/"):
            pairs.append((entry, ""))
            continue
        match = _HOST.fullmatch(entry)
        if match is None:
            _refuse("host", "write host:port, an IPv6 address in [ ]; and @ : / ? in a password "
                    "as %40 %3A %2F %3F")  # fmt: skip
        pairs.append((match["six"] or match["host"] or "", match["port"] or ""))
    given_ports = ports.split(",")
    if len(given_ports) not in (1, len(pairs)):
        _refuse("port", "give one, or one for each host")
    if len(given_ports) == 1:
        given_ports = given_ports * len(pairs)
    addresses: list[tuple[str, int]] = []
    for (host, own), port in zip(pairs, given_ports, strict=True):
        number = own or port or str(PORT)
        if not number.isdecimal() or not 0 < int(number) < 65536:
            _refuse("port", "give a number from 1 to 65535")
        if host or own or port or len(pairs) > 1:
            addresses.append((host or "localhost", int(number)))
    return tuple(addresses)


def _keep_alive(parameters: dict[str, str]) -> KeepAlive:
    _check_value(parameters, "keepalives")
    usual = USUAL_KEEP_ALIVE
    return KeepAlive(
        on=parameters.pop("keepalives", "1") == "1",
        idle_s=_number(parameters, "keepalives_idle", usual.idle_s) or usual.idle_s,
        interval_s=_number(parameters, "keepalives_interval", usual.interval_s) or usual.interval_s,
        count=_number(parameters, "keepalives_count", usual.count) or usual.count,
        user_timeout_ms=_number(parameters, "tcp_user_timeout", usual.user_timeout_ms),
    )


def _for_driver(parameters: Mapping[str, str]) -> dict[str, str]:
    """Parameters that the driver reads; the rest must mean nothing. Raises ConfigError."""
    passed: dict[str, str] = {}
    for name, value in parameters.items():
        if name in _BY_DRIVER:
            _check_value(parameters, name)
            passed[name] = value
        elif value not in _MEANS_NOTHING.get(name, ()):
            is_ignorable = name in _MEANS_NOTHING
            _refuse(
                f"{name}={value}" if is_ignorable else name, _REMEDIES.get(name, "leave it out")
            )
    if passed.get("sslrootcert") == "system":
        _with_system_cas(passed)
    for name in _FILES:
        if name in passed and not os.access(Path(passed[name]).expanduser(), os.R_OK):
            _refuse(name, f"there is no readable file {passed[name]}")
        if name in passed:
            passed[name] = str(Path(passed[name]).expanduser())
    return passed


def _with_system_cas(passed: dict[str, str]) -> None:
    """As libpq: only with the host's name checked."""
    if passed.setdefault("sslmode", "verify-full") != "verify-full":
        _refuse("sslrootcert=system", "it needs sslmode=verify-full: anybody can get a certificate")
    files = [file for file in _SYSTEM_CAS if file and Path(file).exists()]
    if not files:
        _refuse("sslrootcert=system", "install the package ca-certificates, or name a file")
    passed["sslrootcert"] = files[0]


def _check_value(parameters: Mapping[str, str], name: str) -> None:
    allowed = _VALUES.get(name)
    if name in parameters and allowed and parameters[name] not in allowed:
        _refuse(
            f"{name}={parameters[name]}", _REMEDIES.get(name, f"use one of {', '.join(allowed)}")
        )


def _number(parameters: dict[str, str], name: str, usual: int) -> int:
    value = parameters.pop(name, "") or str(usual)
    if not value.isdecimal():
        _refuse(name, "give a whole number")
    return int(value)


def _refuse(parameter: str, remedy: str) -> NoReturn:
    raise ConfigError(f"the database URL's {parameter} cannot be used", remedy=remedy)
