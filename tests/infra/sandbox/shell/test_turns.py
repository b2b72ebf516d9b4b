"""Turns of the shell of a sandbox, with other programs than this machine's."""

import sys

import pytest

from infra.sandbox.shell import channel
from infra.sandbox.shell.channel import CommandAnswer

SPOOL_KB = 16
CAT = f"""#!{sys.executable}
# As the one of busybox: it skips a file that cannot be copied, and copies the next.
import os, sys
for path in sys.argv[1:] or ["/dev/stdin"]:
    file = os.open(path, os.O_RDONLY)
    try:
        while piece := os.read(file, 4096):
            while piece:
                piece = piece[os.write(1, piece):]
    except OSError:
        pass
    os.close(file)
"""


@pytest.fixture(params=["own", "old bash", "other cat"])
async def turn(request, repository, monkeypatch, tmp_path):
    """Runs a command; gives its answer."""
    monkeypatch.setattr(channel, "SPOOL_KB", SPOOL_KB)
    programs = tmp_path / "programs"
    programs.mkdir()
    variables = {"PATH": f"{programs}:/usr/bin:/bin"}
    if request.param == "old bash":  # before 5.1 a here-document is a file
        variables["BASH_COMPAT"] = "5.0"
    elif request.param == "other cat":
        (programs / "cat").write_text(CAT)
        (programs / "cat").chmod(0o755)
    await repository.boot(**variables)
    turns = iter(range(1000))

    async def run(command: str, timeout: str = "20.000") -> CommandAnswer:
        return await repository.call("turn", str(next(turns)), timeout, "60", command)

    return run


async def test_output_is_each_turns_own(turn):
    for number in range(70):
        answer = await turn(f"echo {number}; exit 3")
        assert (answer.status, answer.output) == (3, b"%d\n" % number)


async def test_output_beyond_its_file_is_drained(turn):
    for _ in range(2):
        answer = await turn("head -c 1000000 /dev/zero; exit 3")
        assert (answer.status, answer.output) == (3, bytes(SPOOL_KB << 10))
        assert answer.wall_s < 5
        for _ in range(2):
            assert (await turn("echo fine")).output == b"fine\n"
    whole = await turn(f"head -c {SPOOL_KB << 10} /dev/zero")
    assert (whole.status, whole.output) == (0, bytes(SPOOL_KB << 10))
    assert (await turn("echo fine")).output == b"fine\n"


async def test_a_daemon_keeps_its_pipe_to_itself(turn):
    answer = await turn("echo up; (sleep 1; echo late; exec sleep 2) &")
    assert (answer.status, answer.output) == (0, b"up\n")
    assert (await turn("sleep 1.5; echo alone")).output == b"alone\n"


async def test_time_runs_out_at_any_moment(turn):
    for ms in (1, 31, 64, 65, 500):
        answer = await turn("echo begun; exec sleep 20", f"0.{ms:03d}")
        assert answer.status == -1 and ms / 1000 <= answer.wall_s < 5
    assert (await turn("sleep 0.064; exit 4", "0.500")).status == 4
