"""systemd's watchdog: a worker tells that its event loop runs, so that a process which stands still
is killed and started again.

Only where the unit accepts messages (NotifyAccess=): systemd then gives the socket. Armed by the
process itself, and not by WatchdogSec=, which would count while a worker waits for its services or
drains. The messages are those of sd_notify(3). Used by `polling`.
"""

import asyncio
import os
import socket

import structlog

FROZEN_AFTER_S = 60.0
TELL_EVERY_S = 20.0
"""A third of it, so that two messages may be lost."""
OFF = b"WATCHDOG_USEC=0"
ALIVE = f"WATCHDOG_USEC={FROZEN_AFTER_S * 1e6:.0f}\nWATCHDOG=1".encode()

log = structlog.get_logger()


async def tell_watchdog() -> None:
    """Returns never. Without a socket of systemd's it does nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        await asyncio.Event().wait()
    if address.startswith("@"):  # a socket without a file
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as to_systemd:
        try:
            while True:
                _tell(to_systemd, address, ALIVE)
                await asyncio.sleep(TELL_EVERY_S)
        finally:
            _tell(to_systemd, address, OFF)


def _tell(to_systemd: socket.socket, address: str, message: bytes) -> None:
    try:
        to_systemd.sendto(message, address)
    except OSError as error:  # systemd is being restarted, or is busy
        log.warning("cannot tell systemd's watchdog", reason=str(error))
