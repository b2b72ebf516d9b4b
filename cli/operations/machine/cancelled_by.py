"""Signals that end a command's work in order: they cancel its task, so that every `finally` runs.

Invariants: a signal is heard once. A second one, as `timeout` sends it to a process and to its
group, or an impatient Ctrl-C, does not cut off what removes things. A command that was started deaf
to a signal stays so. Imported by commands.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mainspring.errors import Interrupted

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def cancelled_by(
    *signals: signal.Signals, heard: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """The current task is cancelled when one of `signals` comes; `heard` is called at once."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return

    def cancel() -> None:
        if not task.cancelling():
            heard()
            task.cancel()

    hearing = [signum for signum in signals if signal.getsignal(signum) is not signal.SIG_IGN]
    for number in hearing:
        loop.add_signal_handler(number, cancel)
    try:
        yield
    finally:
        for number in hearing:
            loop.remove_signal_handler(number)


@contextmanager
def resumed_by(command: str, say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM are answered at once, end the work in order, and become Interrupted, whose
    remedy is the `command` that resumes it."""
    was_heard = False

    def heard() -> None:
        nonlocal was_heard
        was_heard = True
        say("interrupted: stopping the processes; finished work is kept")

    with cancelled_by(*ENDING, heard=heard):
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not was_heard or task is None:
                raise
            task.uncancel()
            raise Interrupted("interrupted", remedy=f"to resume, run `{command}`") from None
