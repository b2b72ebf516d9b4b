"""A plain step engine that raises in a pass, on one rank, as the test asks for: unexpected errors
and lack of memory, while the other rank waits in its collective."""

from typing import Any

from trainer.engines.plain import PlainEngine

FAILS_AT = "fails.txt"
"""In the model's folder: a rank's number and one of ERRORS."""
ERRORS = {
    "value": lambda: ValueError("\x1b[31mInvalid beta parameter at index 0\x1b[0m: " + "x" * 3000),
    "memory": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 8 GB"),
    "python memory": lambda: MemoryError("Unable to allocate 8.0 GiB"),
}


class FailingEngine(PlainEngine):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._asked = args[1] / FAILS_AT

    def forward_backward(self, sequences: Any, loss: Any) -> None:
        if self._asked.exists():
            rank, _, name = self._asked.read_text().partition(":")
            if int(rank) == self._processes.dp_rank:
                raise ERRORS[name]()
        super().forward_backward(sequences, loss)
