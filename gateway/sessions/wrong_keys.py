"""Wrong keys from one address: after some within a minute, unknown keys are not looked up.

A key that was right once is let through, so that one client that guesses does not shut out the
others behind its address. Bounded in memory. Imported by the routes of sessions.
"""

import hashlib
import time
from collections import OrderedDict

MAX_WRONG = 30
WINDOW_S = 60.0
_MAX_ADDRESSES = 4096
_MAX_KNOWN = 4096


class WrongKeys:
    def __init__(self, max_wrong: int = MAX_WRONG) -> None:
        self._max_wrong = max_wrong
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Since when, and how many, by address."""
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def blocked_s(self, address: str, key: str) -> float:
        """How long this key is not looked up for this address."""
        since, count = self._wrong.get(address, (0.0, 0))
        left_s = since + WINDOW_S - time.monotonic()
        if count < self._max_wrong or left_s <= 0 or _digest(key) in self._digests:
            return 0.0
        return left_s

    def was_right(self, key: str) -> None:
        self._digests[_digest(key)] = None
        self._digests.move_to_end(_digest(key))
        if len(self._digests) > _MAX_KNOWN:
            self._digests.popitem(last=False)

    def was_wrong(self, address: str) -> None:
        now = time.monotonic()
        since, count = self._wrong.pop(address, (now, 0))
        if since + WINDOW_S <= now:
            since, count = now, 0
        self._wrong[address] = since, count + 1
        if len(self._wrong) > _MAX_ADDRESSES:
            self._wrong.popitem(last=False)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
