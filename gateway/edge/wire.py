"""Messages of an edge and a gateway beside the requests of clients.

A gateway opens a connection to the edge and asks `GET /gateways` with `Upgrade: mainspring-line`,
the shared secret, and an id of its own process. After the edge's 101 the connection is a line, with
the roles turned round: the edge sends requests as any client of HTTP/1.1, one at a time, and the
gateway answers them. What the edge knows of a client comes in headers that begin with `PREFIX`;
those that a client sends itself are dropped. Pure.
"""

from collections.abc import Iterable

LINE = b"mainspring-line"
ROUTE = "/gateways"
PREFIX = b"x-mainspring-"
GATEWAY_HEADER = PREFIX + b"gateway"
"""Header of a dialling gateway: the id of its process."""
CLIENT_HEADER = PREFIX + b"client"
"""Header of a request: the address that it came from."""
ORIGIN_HEADER = PREFIX + b"origin"
"""Header of a request: scheme and host at which its client reaches the edge."""
PING_HEADER = PREFIX + b"ping"
"""Header of a request that is no client's: it asks whether the line is alive."""
RETRY_HEADER = b"x-stainless-retry-count"
"""The official clients mark a request so that they send again, and the edge does."""
MAX_LINES = 256
"""Lines of one gateway at one edge, each with one request at a time."""
PING_EVERY_S = 15.0
"""An idle line is asked whether it is alive; proxies close what is silent for 30 s and more."""
SILENT_S = 60.0
"""A gateway takes a line that has carried nothing for so long as dead."""

Headers = list[tuple[bytes, bytes]]
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
        *(b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
    )
)


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Those of a message that the next server or client is to see."""
    headers = list(headers)
    named_headers = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    dropped = _HOP_BY_HOP | (named_headers - {b"content-length", b"host"})
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith(PREFIX)
    ]
