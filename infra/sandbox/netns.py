"""A socket that listens inside a sandbox, held by this process outside.

Sandboxes have a network of their own with nothing in it but loopback. A short-lived child enters
that network, listens there and hands the socket back; neither this process nor the sandbox ever
sees the other's network. Needs root, or to own the sandbox's user namespace. Imported by
`infra.sandbox.egress` and `infra.sandbox.model_port`.
"""

import asyncio
import errno
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from mainspring.errors import SandboxError

ENTER_TIMEOUT_S = 30.0
BACKLOG = 128
_PROGRAM = Path(__file__).with_name("netns_listen.py")


class NoEntry(SandboxError):
    """This process cannot listen in the sandbox's network."""


async def listen_inside(pid: int, port: int) -> socket.socket:
    """A listening TCP socket at 127.0.0.1:`port` of the network that process `pid` is in.

    Raises NoEntry.
    """
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", str(_PROGRAM)),
            *(str(number) for number in (pid, port, BACKLOG, theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(ENTER_TIMEOUT_S):
                _, output = await child.communicate()
        except BaseException:
            child.kill()
            await child.wait()
            raise
        if child.returncode != 0:
            reason = output.decode(errors="replace").strip().rpartition("\n")[2]
            is_taken = os.strerror(errno.EADDRINUSE) in reason
            raise NoEntry(
                f"cannot listen in the network of process {pid}: {reason}",
                remedy=f"a process in the sandbox has taken port {port}: open another sandbox"
                if is_taken
                else "run the node's worker as root, or give the task no network",
            )
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=fds[0])
