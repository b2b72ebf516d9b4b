"""Tokens of forms: a form is answered only when this viewer drew it for this reader's browser.

Invariants: a token is of one session, one action and one subject, and ends after MAX_AGE_S and with
the viewer's process; it is compared in constant time; its number is the id of what it does, so that
a form that is sent again does nothing new. Imported by `answering`.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable

from mainspring.errors import UsageError

MAX_AGE_S = 12 * 3600.0
_SESSION = re.compile(r"[0-9a-f]{32}")
_TOKEN = re.compile(r"(?P<number>[0-9a-f]{32})\.(?P<at>\d{1,12})\.(?P<mac>[0-9a-f]{64})")
_AGAIN = "open the page of the action again, and press its button there"


class FormRefused(UsageError):
    """The form was not drawn by this viewer for this browser."""


class FormTokens:
    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._secret = secrets.token_bytes(32)
        self._now = now

    def session(self, given: str | None) -> str:
        """The session of a browser that sent this, or a new one."""
        return given if given and _SESSION.fullmatch(given) else secrets.token_hex(16)

    def new(self, session: str, action: str, of: str) -> str:
        number, at = secrets.token_hex(16), int(self._now())
        return f"{number}.{at}.{self._mac(number, at, session, action, of)}"

    def check(self, token: str, session: str | None, action: str, of: str) -> str:
        """The token's number. Raises FormRefused."""
        if not token:
            raise FormRefused("the form has no token", remedy=_AGAIN)
        read = _TOKEN.fullmatch(token)
        if read is None or not session:
            why = "its token is damaged" if read is None else "your browser sent no cookie with it"
            raise FormRefused(f"the form was not accepted: {why}", remedy=_AGAIN)
        number, at = read["number"], int(read["at"])
        if not hmac.compare_digest(read["mac"], self._mac(number, at, session, action, of)):
            raise FormRefused(
                "the form was not accepted: it is not of this viewer, or of one that was started "
                "again since",
                remedy=_AGAIN,
            )
        if self._now() - at > MAX_AGE_S:
            raise FormRefused("the form is older than 12 hours", remedy=_AGAIN)
        return number

    def _mac(self, number: str, at: int, session: str, action: str, of: str) -> str:
        # Each part by its digest: no two different ones are joined to the same text.
        parts = (number, str(at), session, action, of)
        whole = b"".join(hashlib.sha256(p.encode(errors="replace")).digest() for p in parts)
        return hmac.new(self._secret, whole, hashlib.sha256).hexdigest()
