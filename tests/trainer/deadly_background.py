"""The mcore engine under the tests' shim, whose rank is killed around a checkpoint that it writes
in the background. Its writers are slow, so that a step follows while they write."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.trainer import cuda_shim
from tests.trainer.deadly_engine import ARMED_AT, meet
from trainer.engines import sharded_files
from trainer.engines.mcore import McoreEngine
from trainer.engines.parent_death import end_with_parent, ended_with_parent

SLOW_S = 1.5
WRITERS = "writers"
"""Beside the armed points: ids of the processes that ranks had started when they began to write."""
POINTS = (
    "rank before writing",
    "rank after it was written",
    "driver before writing",
    "driver after checkpoint",
    "rank while it is written",
    "driver while it is written",
    "driver before shards",
    "driver after shards",
)


def slowly(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    end_with_parent()
    time.sleep(SLOW_S)
    return ended_with_parent(work, *args, **kwargs)


class DeadlyMcore(McoreEngine):
    def __init__(self, *args: Any) -> None:
        cuda_shim.install()
        cuda_shim.use_optimizer_with_fused_layout()
        sharded_files.ended_with_parent = slowly
        super().__init__(*args)
        files: Any = self.files
        begin, is_saved = files.begin_save, files.is_saved

        def begin_save(*given: Any) -> None:
            meet("rank before writing")
            begin(*given)
            with (Path(os.environ[ARMED_AT]) / WRITERS).open("a") as file:
                for child in psutil.Process().children(recursive=True):
                    print(child.pid, child.create_time(), file=file)
            meet("rank while it is written")

        def saved(*, wait: bool) -> bool:
            done = is_saved(wait=wait)
            if done:
                meet("rank after it was written")
            return done

        files.begin_save, files.is_saved = begin_save, saved
