"""A plain step engine that raises in a pass, on one rank, as the test asks for: unexpected errors
and lack of memory, while the other rank waits in its collective."""

import os
from pathlib import Path
from typing import Any

from trainer.engines.plain import PlainEngine

FAILS_AT = "MAINSPRING_TEST_FAILS_AT"
ERRORS = {
    "value": lambda: ValueError("\x1b[31mInvalid beta parameter at index 0\x1b[0m: " + "x" * 3000),
    "memory": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 8 GB"),
    "python memory": lambda: MemoryError("Unable to allocate 8.0 GiB"),
}


class FailingEngine(PlainEngine):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._rank = self._processes.dp_rank

    def forward_backward(self, sequences: Any, loss: Any) -> None:
        asked = Path(os.environ[FAILS_AT])
        if asked.exists():
            rank, _, name = asked.read_text().partition(":")
            if int(rank) == self._rank:
                raise ERRORS[name]()
        super().forward_backward(sequences, loss)
