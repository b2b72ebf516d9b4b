"""The secret that an edge and its gateways share.

Invariants: it comes from the environment or a file, never from the command line, where other users
of a machine read it; it is compared in constant time; beyond loopback there is no edge without one.
Imported by the edge's process and by gateways that dial out.
"""

import hashlib
import hmac
import ipaddress
import re
from pathlib import Path

from mainspring.config.settings import Settings
from mainspring.errors import ConfigError, UsageError

MIN_CHARS = 32
_REMEDY = "make one with `openssl rand -hex 32`, the same for the edge and its gateways"
_SECRET = re.compile(rf"[\x21-\x7e]{{{MIN_CHARS},512}}")


def edge_secret(settings: Settings) -> str:
    """Empty: none is set. Raises ConfigError."""
    secret, path = settings.edge_secret.get_secret_value(), settings.edge_secret_file
    if secret and path:
        raise ConfigError(
            "MAINSPRING_EDGE_SECRET and MAINSPRING_EDGE_SECRET_FILE are both set",
            remedy="unset one of them",
        )
    name = "MAINSPRING_EDGE_SECRET"
    if path:
        name = f"MAINSPRING_EDGE_SECRET_FILE ({path})"
        secret = _read(Path(path))
    elif not secret:
        return ""
    if not _SECRET.fullmatch(secret):
        raise ConfigError(
            f"{name} is not {MIN_CHARS} to 512 visible ASCII characters", remedy=_REMEDY
        )
    return secret


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refuse_open(host: str, secret: str) -> None:
    """Raises UsageError when any process that reaches `host` could pose as a gateway."""
    if not secret and not is_loopback(host):
        raise UsageError(
            f"an edge at {host} needs a secret, and MAINSPRING_EDGE_SECRET is not set",
            remedy=_REMEDY,
        )


def is_same(token: str, secret: str) -> bool:
    """In constant time, also for another length."""
    return hmac.compare_digest(_digest(token), _digest(secret))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"MAINSPRING_EDGE_SECRET_FILE: {path} cannot be read: {error}", remedy=_REMEDY
        ) from None
