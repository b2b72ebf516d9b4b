"""Step engines, plain and fsdp, whose rank is killed where the test asks for it, and where in a
step a trainer can be killed.

A point is armed by a file of its name in the folder that ARMED_AT names; the process that reaches
the point removes the file and is killed, so that a point hits once.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.engines.fsdp.engine import FsdpEngine
from trainer.engines.plain import PlainEngine

ARMED_AT = "MAINSPRING_TEST_ARMED_AT"

RANK_POINTS = (
    "rank load",
    "rank before forward",
    "rank between forward and backward",
    "rank after backward",
    "rank before update",
    "rank after update",
    "rank before its share",
    "rank within its share",
    "rank before export",
    "rank after export",
)
DRIVER_POINTS = (
    "driver before load",
    "driver after load",
    "driver before step",
    "driver after step",
    "driver before save",
    "driver before rename",
    "driver after rename",
    "driver before commit",
    "driver after commit",
    "driver before prune",
    "raylet within step",
)


def meet(point: str) -> None:
    """Be killed, if the point is armed."""
    if met(point):
        os.kill(os.getpid(), signal.SIGKILL)


def met(point: str) -> bool:
    armed = Path(os.environ[ARMED_AT]) / point
    try:
        armed.rename(armed.with_name(f"hit {point}"))
    except FileNotFoundError:
        return False
    return True


def deadly(
    function: Callable[..., Any], *, before: str = "", after: str = ""
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if before:
            meet(before)
        result = function(*args, **kwargs)
        if after:
            meet(after)
        return result

    return call


class _Deadly:
    files: Any
    weights: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        files, weights = self.files, self.weights
        files.load = deadly(files.load, before="rank load")
        files.save = self._half_written(files.save)
        weights.export_hf = deadly(
            weights.export_hf, before="rank before export", after="rank after export"
        )

    def optimizer(self, config: Any) -> Any:
        made = super().optimizer(config)  # type: ignore[misc]
        made.step = deadly(made.step, before="rank before update", after="rank after update")
        return made

    def forward_backward(self, sequences: Any, loss: Any) -> None:
        meet("rank before forward")

        def between(share: list[int], logprobs: Tensor, entropy: Tensor) -> Tensor:
            meet("rank between forward and backward")
            return loss(share, logprobs, entropy)

        super().forward_backward(sequences, between)  # type: ignore[misc]
        meet("rank after backward")

    def _half_written(self, save: Callable[..., None]) -> Callable[..., None]:
        def call(directory: Path, *args: Any) -> None:
            meet("rank before its share")
            save(directory, *args)
            if met("rank within its share"):
                file = next(f for f in directory.rglob("*") if f.suffix in (".pt", ".distcp"))
                os.truncate(file, file.stat().st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)

        return call


class DeadlyEngine(_Deadly, PlainEngine):
    pass


class DeadlyFsdp(_Deadly, FsdpEngine):
    pass
