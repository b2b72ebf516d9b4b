"""What every backend promises of commands (infra/sandbox/protocol.py), tried on each."""

import asyncio
import time
from pathlib import Path

import pytest
from sandbox_backend import (
    LIMITS,
    make_spec,
    output,
    run,
)

from infra.sandbox.protocol import (
    Limits,
)
from mainspring.tasks.sandbox_choice import BWRAP


@pytest.mark.parametrize(
    ("command", "returncode"),
    [
        ("true", 0),
        ("false", 1),
        ("exit 3", 3),
        ("kill -TERM $$", 143),
        ("kill -9 $$", 137),
        ("no-such-program-here", 127),
        ("if", 2),
        ("", 0),
        ("echo hidden; exit 255", 255),
    ],
)
async def test_exit_codes(shared, command, returncode):
    result = await run(shared, command)
    assert (result.returncode, result.timed_out) == (returncode, False)


async def test_output_is_interleaved_as_written(shared):
    command = "for i in 1 2 3; do echo out$i; echo err$i >&2; done; echo last > /dev/stderr"
    expected = b"out1\nerr1\nout2\nerr2\nout3\nerr3\nlast\n"
    assert await output(shared, command) == expected


async def test_any_bytes_pass_in_and_out(shared):
    assert await output(shared, r"printf '\000\377\n\001'") == b"\x00\xff\n\x01"
    assert await output(shared, "printf '%s' 'caf\u00e9 \udcff'") == b"caf\xc3\xa9 \xff"
    assert await output(shared, "printf '%s' 'a\0b'; echo \"'\"") == b"ab'\n"
    assert (await run(shared, "echo '\ud800'")).output == b"?\n"
    long = "x" * 300_000
    assert await output(shared, f"x={long}; echo ${{#x}}") == b"300000\n"


@pytest.mark.parametrize("num_bytes", [1, 511, 512, 513, 5000])
async def test_short_and_long_output_is_whole_wherever_a_nul_stands(shared, num_bytes):
    assert await output(shared, f"printf '%{num_bytes}s' ''") == b" " * num_bytes
    for before in {0, num_bytes // 2, num_bytes - 1}:
        command = f"printf '%{before}s\\0%{num_bytes - before}s' '' ''"
        assert await output(shared, command) == b" " * before + b"\0" + b" " * (num_bytes - before)
    slowly = f"printf '%{num_bytes}s' ''; sleep 0.1; printf '%{num_bytes}s' ''"
    assert await output(shared, slowly) == b" " * 2 * num_bytes


async def test_no_nul_is_lost_on_a_busy_machine(shared):
    # bash's `read` with a timeout loses a NUL that comes as its time runs out.
    for delay_ms in [*range(10, 20)] * 6:
        command = f"""for _ in 1 2 3; do (while :; do :; done) & done
            sleep 0.0{delay_ms}; printf '\\0%511s' ''; kill $(jobs -p)"""
        assert await output(shared, command) == b"\0" + b" " * 511


async def test_here_documents_and_sentinel_like_text(shared):
    command = "cat <<'EOF'\nreply 0\n}\nEOF\ncat <<EOF\n$((1 + 1))\nEOF"
    assert await output(shared, command) == b"reply 0\n}\n2\n"


async def test_commands_share_nothing_but_files(shared):
    await output(shared, "cd /; export LEAK=1; leak=2; set -e; alias ls=false; umask 077")
    assert await output(shared, 'echo "$PWD $LEAK$leak $-"; umask') == b"/testbed  hBc\n0022\n"
    assert await output(shared, "echo ${NONCE-unset} ${RUN-unset}") == b"unset unset\n"
    assert await output(shared, "cat; readlink /proc/self/fd/0") == b"/dev/null\n"
    open_files = "for fd in {0..30}; do [ ! -e /proc/$$/fd/$fd ] || echo -n $fd; done"
    assert await output(shared, open_files) == b"012"


async def test_a_timeout_kills_the_whole_group(fresh):
    command = "echo begun; (sleep 987 & sleep 986); echo never"
    result = await run(fresh, command, 0.5)
    assert (result.returncode, result.timed_out, result.output) == (-1, True, b"begun\n")
    assert 0.5 <= result.wall_s < 5
    assert await output(fresh, "grep -sl 98[67] /proc/[0-9]*/cmdline || echo none") == b"none\n"


async def test_a_stubborn_command_is_killed_too(shared):
    result = await run(shared, "trap '' TERM INT HUP; while :; do sleep 0.05; done", 0.3)
    assert result.timed_out
    assert (await run(shared, "kill -STOP $$", 0.5)).returncode != 0


async def test_long_output_keeps_head_and_tail(fresh):
    command = "head -c 50000000 /dev/zero | tr '\\0' x; echo; echo the end"
    result = await run(fresh, command, 60)
    assert (result.returncode, result.truncated) == (0, True)
    assert len(result.output) == LIMITS.output_bytes
    assert result.output.startswith(b"xxx") and result.output.endswith(b"x\nthe end\n")
    assert b"cut here" in result.output
    whole = await run(fresh, f"head -c {LIMITS.output_bytes} /dev/zero")
    assert (whole.output, whole.truncated) == (bytes(LIMITS.output_bytes), False)
    assert await output(fresh, "echo clean") == b"clean\n"


async def test_endless_output_ends_with_its_timeout(shared):
    result = await run(shared, "yes", 1)
    assert result.timed_out and result.truncated
    assert await output(shared, "echo fine") == b"fine\n"


async def test_a_turn_runs_once(fresh):
    count = "echo ran >> /tmp/count; wc -l < /tmp/count"
    first = await fresh.run("once", count, 20)
    assert await fresh.run("once", count, 20) == first
    assert first.output.strip() == b"1"
    slow = "sleep 0.3; echo ran >> /tmp/slow; wc -l < /tmp/slow"
    both = await asyncio.gather(fresh.run("slow", slow, 20), fresh.run("slow", slow, 20))
    assert both[0] == both[1] and both[0].output.strip() == b"1"


async def test_a_cancelled_caller_reattaches(fresh):
    command = "echo ran >> /tmp/count; sleep 0.5; wc -l < /tmp/count"
    attempt = asyncio.create_task(fresh.run("turn", command, 20))
    await asyncio.sleep(0.2)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert (await fresh.run("turn", command, 20)).output.strip() == b"1"


async def test_a_cancelled_call_leaves_no_answer_behind(fresh):
    await output(fresh, "echo more >> README.md")
    asking = asyncio.create_task(fresh.diff())
    await asyncio.sleep(0.001)
    asking.cancel()
    assert await output(fresh, "echo mine") == b"mine\n"
    assert b"+more" in await fresh.diff()


async def test_daemons_live_on_and_block_nothing(fresh):
    started = time.monotonic()
    assert await output(fresh, "(sleep 0.6; echo late; sleep 600) & echo up") == b"up\n"
    assert await output(fresh, "setsid sleep 601 & echo up") == b"up\n"
    assert time.monotonic() - started < 60
    await asyncio.sleep(0.8)
    assert await output(fresh, "grep -sl 60[01] /proc/[0-9]*/cmdline | wc -l") == b"2\n"
    assert await output(fresh, "echo clean") == b"clean\n"


@pytest.mark.parametrize(
    "command",
    [
        "exec >&- 2>&-; sleep 0.1",
        "kill -9 -1",
        "kill -9 1; kill -STOP 1; kill -TERM 1; exit 3",
        "kill -9 $PPID; sleep 0.1",
        "trap 'kill 0' EXIT",
        'for fd in /proc/self/fd/*; do eval "exec ${fd##*/}>&-"; done',
    ],
)
async def test_the_sandbox_survives_its_commands(fresh, command):
    result = await run(fresh, command, 10)
    assert not result.timed_out and result.wall_s < 5
    assert await output(fresh, "echo alive; git status --short") == b"alive\n"


@pytest.mark.parametrize(
    "victims", ["-1", "$PPID", "$(grep -sl ^PPid:.$PPID$ /proc/[0-9]*/status | tr -dc '0-9\\n')"]
)
async def test_what_runs_commands_is_replaced_when_killed_between_two(fresh, victims):
    killing = f'victims="{victims}"; (sleep 0.3; kill -9 $victims) & echo up'
    assert await output(fresh, killing) == b"up\n"
    await asyncio.sleep(0.6)
    assert await output(fresh, "echo alive") == b"alive\n"
    assert await output(fresh, "echo alive") == b"alive\n"


FIND_READER = """
    mine=$(readlink /proc/$$/fd/1)
    for each in /proc/[0-9]*; do
      [ "$(readlink "$each/fd/3")" != "$mine" ] || reader=${each#/proc/}
    done
    file=$(readlink "/proc/$reader/fd/1")
"""


async def test_no_output_is_lost_when_its_reader_is_slow(shared):
    """As on a machine with so much to do that the reader does not run for a while."""
    resumed = "(exec >&- 2>&-; sleep 1; kill -CONT $reader) &"
    stops = f"{FIND_READER} kill -STOP $reader; echo whole; {resumed}"
    for _ in range(2):
        assert await output(shared, stops) == b"whole\n"
    daemon = "echo begun; (sleep 3; echo late) &"
    assert await output(shared, daemon) == b"begun\n"


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
async def test_what_a_command_says_after_it_killed_its_reader_is_whole(shared, signal):
    kills = f"{FIND_READER} kill -{signal} $reader; while [ -e /proc/$reader ]; do :; done"
    assert await output(shared, f"{kills}; printf '\\0end'") == b"\0end"
    result = await run(shared, f"{kills}; printf 'begun\\n%300000s\\nend'", 10)
    assert (result.returncode, result.timed_out) == (0, False) and result.wall_s < 5
    assert result.output.startswith(b"begun\n ") and result.output.endswith(b" \nend")
    assert await output(shared, "echo fine") == b"fine\n"


@pytest.mark.parametrize(
    "change", ["rm -f $file", "chmod 0 $file", "chmod a-r $file", "mv $file $file.old"]
)
async def test_the_next_output_has_a_file_whatever_became_of_the_last_ones(shared, change):
    await run(shared, f"{FIND_READER} {change}")
    for _ in range(2):
        assert await output(shared, "echo fine") == b"fine\n"


async def test_a_command_without_output_runs_on(shared):
    result = await run(shared, "exec >/tmp/out 2>&1; sleep 0.5; echo said; exit 3")
    assert (result.returncode, result.output) == (3, b"")
    assert await output(shared, "head -n 1 /tmp/out") == b"said\n"


async def test_no_network(shared):
    async with await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for host in ("127.0.0.1", "1.1.1.1"):
            result = await run(shared, f": < /dev/tcp/{host}/{port}", 5)
            assert result.returncode == 1, result
    assert (await output(shared, "cat /proc/net/route | tail -n +2")) == b""


async def test_host_is_out_of_reach(backend, monkeypatch, tmp_path):
    monkeypatch.setenv("MAINSPRING_TEST_SECRET", "sesame")
    (tmp_path / "secret").write_text("sesame")
    sandbox = await backend.open(make_spec(backend.name, "curious"))
    try:
        seen = await run(sandbox, "env; cat /proc/[0-9]*/environ; cat /proc/[0-9]*/cmdline")
        assert b"sesame" not in seen.output and b"pytest" not in seen.output
        hidden = (tmp_path / "secret", Path(__file__), Path("/etc/shadow"))
        for path in hidden if backend.name == BWRAP else hidden[:2]:
            assert (await run(sandbox, f"cat {path}")).returncode == 1
        assert (await run(sandbox, "touch /usr/bin/x; echo > /proc/sys/kernel/hostname")).returncode
        status = await output(sandbox, "grep -E 'CapEff|NoNewPrivs' /proc/self/status")
        assert status.split() == [b"CapEff:", b"0000000000000000", b"NoNewPrivs:", b"1"]
    finally:
        await sandbox.close()


async def test_a_fork_bomb_stays_inside(backend):
    bomb = await backend.open(make_spec(backend.name, "bomb", Limits(max_pids=24)))
    try:
        await run(bomb, "bomb() { bomb | bomb & }; bomb", 2)
        other = await backend.open(make_spec(backend.name, "beside-a-bomb"))
        assert await output(other, "echo fine") == b"fine\n"
        await other.close()
    finally:
        started = time.monotonic()
        await bomb.close()
    assert time.monotonic() - started < 20


async def test_limits_of_memory_and_file_size(backend):
    limits = Limits(memory_mb=64, disk_mb=4)
    sandbox = await backend.open(make_spec(backend.name, "small", limits))
    try:
        hungry = "python3 -c 'print(len(bytearray(200 << 20)))'"
        assert (await run(sandbox, hungry)).returncode != 0
        big = await run(sandbox, "head -c 10000000 /dev/zero > big; wc -c < big")
        assert big.output.split()[-1] == str(4 << 20).encode()
        assert await output(sandbox, "echo fine") == b"fine\n"
    finally:
        await sandbox.close()
