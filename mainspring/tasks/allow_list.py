"""Which addresses a task's sandboxes may reach: `host:port` entries, everything else is refused.

Pure. A host is a name, a name's subdomains (".example.com", which includes example.com itself) or
a literal IP address. Names are judged as asked for, and then the addresses they resolve to:
one that a name was pointed at must not lead to the node itself or its metadata service.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from mainspring.errors import UsageError

_NAME = re.compile(
    r"\.?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
)
_REMEDY = "write host:port, .domain:port (with its subdomains) or address:port ([v6]:port)"


@dataclass(frozen=True, slots=True)
class Entry:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises UsageError."""
        host, separator, port = text.strip().lower().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not separator or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise UsageError(f"{text!r}: no port to allow", remedy=_REMEDY)
        if _address(host) is None and not (len(host) < 254 and _NAME.fullmatch(host)):
            raise UsageError(f"{text!r}: {host!r} is not a host's name or address", remedy=_REMEDY)
        return cls(host, int(port))

    def matches(self, host: str, port: int) -> bool:
        if port != self.port:
            return False
        if self.host.startswith("."):
            return host == self.host[1:] or host.endswith(self.host)
        return host == self.host or (
            _address(host) is not None and _address(host) == _address(self.host)
        )


@dataclass(frozen=True, slots=True)
class AllowList:
    entries: tuple[Entry, ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Raises UsageError."""
        return cls(tuple(Entry.parse(text) for text in texts))

    def allows(self, host: str, port: int) -> bool:
        host = host.lower().rstrip(".")
        return any(entry.matches(host, port) for entry in self.entries)

    def allows_address(self, host: str, address: str) -> bool:
        """Whether the allowed `host` may be reached at `address`: loopback, link-local (where
        clouds keep their metadata), multicast and unspecified ones only when listed literally."""
        resolved = _address(address)
        if resolved is None or resolved == _address(host):
            return resolved is not None
        mapped = getattr(resolved, "ipv4_mapped", None) or resolved
        return not (
            mapped.is_loopback
            or mapped.is_link_local
            or mapped.is_multicast
            or mapped.is_unspecified
        )


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
