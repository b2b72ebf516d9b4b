"""Runs a function in the processes of a trainer's ranks, forked from one that has Megatron loaded.

A hung collective is the usual failure of such a test: ranks that are not done at the deadline are
killed, and the traceback of each rank that failed is in the error.
"""

import multiprocessing
import multiprocessing.util
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEADLINE_S = 120.0


def run(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(rank, store, *arguments)` in each rank; what each returned, in order of ranks.
    `store`: path of a file for torch's FileStore."""
    os.environ |= {"TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainer.rank_jobs"])
    with tempfile.TemporaryDirectory() as folder:
        started = [
            context.Process(target=_rank, args=(function, rank, folder, arguments))
            for rank in range(world_size)
        ]
        for process in started:
            process.start()
        _wait(started)
        failed = [
            f"rank {rank}:\n{(Path(folder) / f'error{rank}').read_text()}"
            for rank in range(world_size)
            if (Path(folder) / f"error{rank}").exists()
        ]
        assert not failed, "\n".join(failed)
        missing = [r for r in range(world_size) if not (Path(folder) / f"result{r}").exists()]
        assert not missing, f"ranks {missing} did not finish within {DEADLINE_S:.0f} s"
        return [
            pickle.loads((Path(folder) / f"result{rank}").read_bytes())
            for rank in range(world_size)
        ]


def _wait(processes: list[Any]) -> None:
    """For all, or until one has failed: the others then wait for it in a collective."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if not any(process.is_alive() for process in processes):
            break
        if any(process.exitcode for process in processes):
            time.sleep(0.5)
            break
        time.sleep(0.02)
    for process in processes:
        process.kill()
        process.join()


def _rank(function: Callable[..., Any], rank: int, folder: str, arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        found = function(rank, str(Path(folder) / "store"), *arguments)
        temporary = Path(folder) / f"writing{rank}"
        temporary.write_bytes(pickle.dumps(found))
        temporary.rename(Path(folder) / f"result{rank}")
    except BaseException:
        (Path(folder) / f"error{rank}").write_text(traceback.format_exc()[-3000:])
        os._exit(1)
    # Megatron's checkpoint writer leaves a process behind unless multiprocessing ends it.
    multiprocessing.util._exit_function()
    os._exit(0)  # threads of process groups would wait for each other
