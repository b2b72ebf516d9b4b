"""What programs printed to a terminal of a test (a pty)."""

import errno
import os


def printed_to(terminal: int) -> str:
    """All that was written until its other end was closed; closes `terminal`.

    One read gives what one write left: a program that writes twice needs more than one.
    """
    pieces: list[bytes] = []
    try:
        while piece := os.read(terminal, 4096):
            pieces.append(piece)
    except OSError as error:
        if error.errno != errno.EIO:  # Linux: the other end is closed
            raise
    finally:
        os.close(terminal)
    return b"".join(pieces).decode()
