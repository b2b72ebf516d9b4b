"""Whose request it is: the key of its connection, or the one that it names.

Invariant: a connection that a node has bound to a session takes no other key, whatever the client
in the sandbox sends. Pure. Imported by the gateway's application and its connections.
"""

from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Scope

BOUND = "mainspring_key"
"""In the scope of each request of a bound connection."""


def key_of(scope: Scope) -> str | None:
    if BOUND in scope:
        return scope[BOUND]
    if key := scope.get("path_params", {}).get("key"):
        return key
    headers = Headers(scope=scope)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    for name in ("x-api-key", "x-goog-api-key"):
        if key := headers.get(name):
            return key
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return query.get("key", [None])[0]
