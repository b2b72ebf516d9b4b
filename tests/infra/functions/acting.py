"""Functions that a test calls in processes of their own: good ones, and all that can be wrong."""

import asyncio
import contextlib
import os
import sys
import threading
import time
from pathlib import Path

from mainspring.environments.protocol import WorldLost


async def half(task) -> float:
    print("the task is", task.id)
    return 0.5


async def told(**everything) -> dict:
    sandbox = everything.pop("sandbox")
    return {
        **everything,
        "task": everything["task"].model_dump(mode="json"),
        "has_sandbox": sandbox is not None,
    }


async def environment() -> dict:
    return dict(os.environ)


async def raises() -> float:
    print("before")
    raise ValueError("no such move\nin this game")


async def exits() -> None:
    sys.exit(3)


async def ends_its_process() -> None:
    print("last words", flush=True)
    os._exit(3)


async def kills_itself() -> None:
    os.kill(os.getpid(), 9)


async def forgets_to_return() -> None:
    pass


async def gives_an_object() -> object:
    return object()


async def gives_nan() -> float:
    return float("nan")


async def gives_too_much() -> bytes:
    return bytes(17 << 20)


async def is_lost() -> None:
    raise WorldLost("its service was restarted")


async def leaks() -> int:
    kept = []
    while True:
        kept.append(bytearray(8 << 20))


async def prints_without_end() -> None:
    for number in range(20_000):
        print(number, "x" * 80)
    raise RuntimeError("enough")


async def blocks() -> None:
    print("blocking", flush=True)
    threading.Event().wait()


async def leaves_a_thread() -> int:
    threading.Thread(target=time.sleep, args=(3600,)).start()
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
    return 1


async def leaves_processes() -> dict:
    """One in its own group, and one that left it; both hold the output open."""
    beside = await asyncio.create_subprocess_exec("sleep", "3600")
    apart = await asyncio.create_subprocess_exec("sleep", "3600", start_new_session=True)
    return {"pids": [beside.pid, apart.pid]}


async def leaves_a_process_and_is_killed() -> None:
    """As a kernel that is short of memory kills: one process, and not its children."""
    await asyncio.create_subprocess_exec("sleep", "3600", start_new_session=True)
    os.kill(os.getpid(), 9)


async def asks_for_commands(sandbox) -> list:
    ran = await asyncio.gather(*(sandbox.run(f"echo {n}", timeout_s=n + 1) for n in range(5)))
    return [each.output for each in ran]


async def gives_up_a_command(sandbox) -> list:
    """And asks for the next one, which comes after it."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(sandbox.run("slow"), 0.05)
    ran = await asyncio.wait_for(sandbox.run("next"), 60)
    return [ran.output]


async def writes_a_file() -> str:
    Path("here").write_text("x")
    return os.getcwd()


def plain(task) -> float:
    return 0.0


async def wants_more(task, reward_model) -> float:
    return 0.0


async def by_place(task, /) -> float:
    return 0.0


async def with_a_default(task, reward_model="none", *rest) -> float:
    return 0.0


NOT_ONE = 3
