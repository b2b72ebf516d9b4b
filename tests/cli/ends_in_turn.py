"""A process that writes its name into a file when it is asked to end, after some seconds."""

import signal
import sys
import time
from pathlib import Path

file, name, seconds = sys.argv[1:]


def end(*_: object) -> None:
    time.sleep(float(seconds))
    with Path(file).open("a") as ends:
        ends.write(f"{name}\n")
    sys.exit()


signal.signal(signal.SIGTERM, end)
Path(f"{file}.{name}").touch()
while True:
    signal.pause()
