"""Errors in one line for people, whatever a library put into their text."""

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from mainspring.words.causes import (
    cause_of,
    is_of_a_peer,
    is_out_of_memory,
    memory_kills,
    shortened,
)
from mainspring.words.plain_text import plain


class Wrapped(Exception):
    """As Ray's: the text is a remote traceback, the cause is at hand."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("\x1b[36mray::RankActor.call()\x1b[39m\n  File x, line 1\n    ^^^^^^^^\n")
        self.cause = cause


class OutOfMemoryError(RuntimeError):
    """Of the name that torch and Ray use."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[36mray::Rank\x1b[39m.call", "ray::Rank.call"),
        ("\x1b[2J\x1b[1;1Hclear", "clear"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x1b\\ end", "link end"),
        ("\x9b2Jbell\x07", "bell"),
        ("10%\r50%\r\nend", "10%50%\nend"),
        ("a\u202eb\u2066c", "abc"),
        ("\x1b", ""),
        ("tab\tand\nline", "tab\tand\nline"),
    ],
)
def test_nothing_steers_a_terminal(text: str, expected: str) -> None:
    assert plain(text) == expected


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    text = "ValueError: " + "x" * 5000 + " at index 0"
    short = shortened(text, 100)
    assert len(short) <= 100 and short.startswith("ValueError") and short.endswith("at index 0")
    assert shortened("as it is", 100) == "as it is"


def test_a_cause_is_its_class_and_message_without_a_traceback() -> None:
    assert cause_of(ValueError("Invalid beta: 1.0")) == "ValueError: Invalid beta: 1.0"
    assert cause_of(Wrapped(KeyError("ntk"))) == "KeyError: 'ntk'"
    assert cause_of(ExceptionGroup("2 errors", [Wrapped(ValueError("b"))])) == "ValueError: b"
    assert cause_of(AssertionError()) == "AssertionError"
    assert cause_of(ValueError("two\n  lines\t here")) == "ValueError: two lines here"


def test_a_traceback_in_a_message_is_cut_to_its_last_line() -> None:
    """Seen where a process pool raises what its process raised: the text is the cause's alone."""
    with ProcessPoolExecutor(max_workers=1) as pool, pytest.raises(ValueError) as failed:
        pool.submit(int, "x").result()
    assert cause_of(failed.value) == "ValueError: invalid literal for int() with base 10: 'x'"
    assert cause_of(RuntimeError(str(failed.value.__cause__))).startswith(
        "RuntimeError: ValueError: invalid literal"
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 8.0 GiB for an array"),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 GB"),
        RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        RuntimeError("std::bad_alloc"),
        OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"),
        Wrapped(MemoryError()),
    ],
)
def test_lack_of_memory_has_many_words(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the token that ran out of memory lane: out of memory"),
        RuntimeError("shape mismatch"),
        OSError(28, "No space left on device"),
        ConnectionError("closed"),
    ],
)
def test_other_errors_are_no_lack_of_memory(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_the_effect_of_a_peers_end_is_known() -> None:
    gloo = RuntimeError("[../third_party/gloo/transport/tcp/pair.cc:525] Connection closed by peer")
    assert is_of_a_peer(gloo) and is_of_a_peer(ConnectionResetError())
    assert not is_of_a_peer(ValueError("Invalid beta parameter"))


def test_the_kernel_tells_whom_it_ended_for_lack_of_memory() -> None:
    found = memory_kills()
    if found is None:
        pytest.skip("neither memory.events nor /proc/vmstat tells of processes that were ended")
    assert found >= 0


def test_a_process_knows_the_file_that_it_logs_to(tmp_path: Path) -> None:
    program = "from mainspring.words.causes import own_log; print(own_log())"
    log = tmp_path / "worker.log"
    with log.open("wb") as file:
        told = subprocess.run([sys.executable, "-c", program], stdout=-1, stderr=file, check=True)
    assert told.stdout.decode().strip() == str(log)
    piped = subprocess.run([sys.executable, "-c", program], stdout=-1, stderr=-1, check=True)
    assert piped.stdout.decode().strip() == "None"
