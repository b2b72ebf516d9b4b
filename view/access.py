"""Who may read the pages: by the name of the host, and by a token where one is required.

Invariants: a request for another host name than ours is refused, so that no page of elsewhere can
read these by a name that it moved here; a token is compared in constant time, and stands in no URL;
every answer, also a refusal, has the headers that keep a browser from running or framing anything.
Imported by `app`.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Collection
from html import escape
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "mainspring-view"
LOGIN = "/login"
STATIC = "/static/"
ACTS = "/do/"
"""Where forms of actions are sent to."""
MAX_LOGIN_BYTES = 4096
WRONG_TOKEN_S = 0.5
"""A wrong token is answered no sooner."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # With "no-referrer" a browser sends our own forms without their origin.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


class AccessGuard:
    """Middleware around the pages. `hosts`: names beside those of loopback. `token`: empty, where
    none is required. `acts`: whether forms of actions are answered."""

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] = (), token: str = "", acts: bool = False
    ) -> None:
        self._app = app
        self._own_hosts = {name.lower() for name in hosts}
        self._hosts = {*LOOPBACK, *self._own_hosts}
        self._token = token
        self._acts = acts
        # Who reads a cookie does not learn the token.
        self._cookie = hashlib.sha256(f"{COOKIE} {token}".encode()).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = await self._refusal(Request(scope, receive))
        await (refusal or self._app)(scope, receive, with_headers)

    async def _refusal(self, request: Request) -> Response | None:
        """None: the page may be read."""
        host = host_name(request.headers)
        if host not in self._hosts:
            return PlainTextResponse(
                f"this viewer does not answer to the host name {host!r}\n"
                "start it with `mainspring view --allow-host NAME` to allow one\n",
                421,
            )
        is_form = request.method not in ("GET", "HEAD") and request.url.path != LOGIN
        if is_form and (refusal := self._refused_form(request)):
            return refusal
        if not self._token or request.url.path.startswith(STATIC):
            return None
        if request.url.path == LOGIN:
            return await self._login(request)
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        cookie = request.cookies.get(COOKIE, "")
        if _same(given, self._token) or _same(cookie, self._cookie):
            return None
        if request.method == "GET" and not request.url.path.endswith(".json"):
            return _login_page(401)
        return PlainTextResponse("a token is required: Authorization: Bearer TOKEN\n", 401)

    def _refused_form(self, request: Request) -> Response | None:
        """Refusal of what may change something; None: it is a form of ours."""
        if not self._acts:
            return PlainTextResponse("this viewer changes nothing: it answers GET\n", 405)
        if request.method != "POST" or not request.url.path.startswith(ACTS):
            return PlainTextResponse(f"only the forms under {ACTS} are answered\n", 405)
        origin = request.headers.get("origin")
        if origin is None or self._is_ours(origin, request.headers.get("host", "")):
            return None
        return PlainTextResponse(
            f"the form came from {origin[:200]!a}, and not from this viewer: nothing was done\n"
            "where a proxy is before the viewer, name its host with --allow-host NAME\n",
            403,
        )

    def _is_ours(self, origin: str, host: str) -> bool:
        """Where the page was that sent a form. Another port of loopback is another program."""
        try:
            parts = urlsplit(origin.lower())
            named = parts.hostname if parts.port in (None, 80, 443) else None
        except ValueError:
            return False
        is_web = parts.scheme in ("http", "https")
        return is_web and (parts.netloc == host.lower() or named in self._own_hosts)

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return _login_page(200)
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_LOGIN_BYTES:
                return _login_page(413, "That is too long for a token.")
        given = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
        if not _same(given, self._token):
            await asyncio.sleep(WRONG_TOKEN_S)
            return _login_page(401, "This is not the token. It is the first line of --token-file.")
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, self._cookie, httponly=True, samesite="strict")
        return answer


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(headers: Headers) -> str:
    """The name in a request's `Host`, without its port."""
    host = headers.get("host", "").lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _login_page(status: int, told: str = "") -> HTMLResponse:
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Mainspring</title>'
        '<meta name="viewport" content="width=device-width">'
        '<link rel="stylesheet" href="/static/view.css"></head><body><main id="main" class="login">'
        f'<h1>Mainspring</h1><p role="alert">{escape(told)}</p>'
        f'<form method="post" action="{LOGIN}"><label>Token <input name="token" type="password" '
        'autocomplete="current-password" required autofocus></label> <button>Open</button></form>'
        "</main></body></html>",
        status,
    )
