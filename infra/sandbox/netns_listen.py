"""The child of `netns`: enters a process's network, listens there, sends the socket back.

Arguments: process id, port, backlog, and the descriptor of the socket that takes the answer. Runs
alone, with the standard library only; imported by no module.
"""

import ctypes
import fcntl
import os
import socket
import sys

NS_GET_USERNS = 0xB701


def main(pid: int, port: int, backlog: int, channel: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)

    def enter(namespace: int) -> bool:
        return libc.setns(namespace, 0) == 0

    def enter_owner() -> bool:
        return enter(fcntl.ioctl(network, NS_GET_USERNS))

    # An unprivileged owner has no power over the network before it is in its user namespace.
    if not (enter(network) or (enter_owner() and enter(network))):
        sys.exit(os.strerror(ctypes.get_errno()))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(backlog)
    socket.send_fds(socket.socket(fileno=channel), [b"."], [listener.fileno()])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
