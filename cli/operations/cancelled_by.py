"""Signals that end a command's work in order: they cancel its task, so that every `finally` runs.

Invariant: a signal is heard once. A second one, as `timeout` sends it to a process and to its
group, or an impatient Ctrl-C, does not cut off what removes things. Imported by commands.
"""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cancelled_by(*signals: signal.Signals) -> Iterator[None]:
    """The current task is cancelled when one of `signals` comes."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return

    def cancel() -> None:
        if not task.cancelling():
            task.cancel()

    for number in signals:
        loop.add_signal_handler(number, cancel)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
