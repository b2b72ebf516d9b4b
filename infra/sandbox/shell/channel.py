"""Calls to the shell that runs inside a sandbox as its first process (shell.sh).

Owns the framing: a call to the shell's stdin, its output and a status back, ended by a nonce no
output can contain by chance. One call at a time; a shell that ends, floods its channel or does not
answer in time is gone for good. A process that dies leaves the shell running: the next one makes a
Shell of its own for it and begins with `rejoin`. Knows nothing of bubblewrap or Docker. Imported by
the sandbox backends only.
"""

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from mainspring.protocol.timeouts import ORPHAN_S

PROGRAM = b"".join(
    Path(__file__).with_name(name).read_bytes()
    for name in ("shell.sh", "turns.sh", "kinds.sh", "bases.sh", "changes.sh", "patch.sh")
)
SPOOL_KB = 64 << 10
"""Most of one command's output that is kept on the sandbox's disk, to cut head and tail from."""
OWN_PROCESSES = 5
"""Processes that shell.sh itself needs beside a command's."""
CHANNEL_BYTES = 32 << 20
"""More than any answer: what exceeds it is an attack on the channel."""
LAST_WORDS_S = 1.0
_GO = b"\ngo\0"
_HIDE = b"""RUN=%s; shopt -s execfail
mkdir -p "$RUN" && cp "/proc/$$/exe" "$RUN/shell" && chmod 111 "$RUN/shell" &&
exec "$RUN/shell" --noprofile --norc 2>/dev/null
"""
"""A shell whose program its user cannot read: the kernel gives no process its memory and pipes, so
that no command learns the nonce, answers in its place or takes its calls. Else it runs as is."""
_READ = b"""LC_ALL=C; IFS= read -r -N %d PROGRAM; eval "$PROGRAM"; unset PROGRAM
"""
"""bash reads a program from a pipe byte by byte, a system call for each: here all at once."""


class ShellGone(Exception):
    """The shell ended or does not answer; `said` is what it wrote instead of an answer."""

    def __init__(self, reason: str, said: bytes = b"") -> None:
        super().__init__(reason)
        self.said = said


class ShellStuck(ShellGone):
    """The shell still runs, but its answers came too late or were too long: they are not
    trusted."""


@dataclass(frozen=True, slots=True)
class ShellSetup:
    """Facts that shell.sh is told before its first call."""

    workdir: str
    run_dir: str
    """Directory for output and the base repository, outside the working tree."""
    limits: str
    """A bash line of ulimits, for every command and for what the shell does itself."""
    output_bytes: int
    prepared: str = ""
    """Repository to copy to `workdir`; empty: the one found there is the base."""
    variables: str = ""
    """A bash line of exports, for commands alone."""
    has_rules: bool = True
    """The base may have a .gitignore or a .gitattributes."""
    is_hidden: bool = False
    """The shell's user cannot read its program: it need not hide itself."""

    def encode(self, nonce: str) -> bytes:
        values = {
            "NONCE": nonce,
            "RUN": self.run_dir,
            "WORKDIR": self.workdir,
            "LIMITS": self.limits,
            "SPOOL_KB": str(SPOOL_KB),
            "OUTPUT_BYTES": str(self.output_bytes),
            "PREPARED": self.prepared,
            "RULES": "1" if self.has_rules else "",
            "VARIABLES": self.variables,
            "ORPHAN_S": str(ORPHAN_S),
        }
        lines = (f"{name}={shlex.quote(value)}\n" for name, value in values.items())
        hide = b"" if self.is_hidden else _HIDE % shlex.quote(self.run_dir).encode()
        return hide + "".join(lines).encode() + _READ % len(PROGRAM) + PROGRAM + b"serve\n"


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    status: int
    output: bytes
    wall_s: float
    """Time of the call inside, where the shell measures it (turns), else 0."""


class Shell:
    """`reader` carries what the shell writes, `send` writes to its stdin.

    A call continues when its caller is cancelled, so that the next one meets its own answer.
    """

    def __init__(
        self, reader: asyncio.StreamReader, send: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._reader = reader
        self._send = send
        self._nonce = secrets.token_hex(16)
        self._one_call = asyncio.Lock()

    async def boot(self, setup: ShellSetup, timeout_s: float) -> CommandAnswer:
        return await self._whole(setup.encode(self._nonce) + b"boot" + _GO, timeout_s)

    async def rejoin(self, timeout_s: float) -> None:
        """Take over a shell that another process talked to, once it is done with what that process
        asked for last. Raises ShellGone."""
        hello = b"hello " + self._nonce.encode() + _GO
        await self._whole(b"\0" + hello, timeout_s)  # the first byte ends a half-sent call

    async def call(
        self, function: str, *arguments: str | bytes, payload: bytes = b"", timeout_s: float
    ) -> CommandAnswer:
        """Call a function of shell.sh. Raises ShellGone."""
        line = b" ".join([function.encode(), *map(_quote, arguments)])
        return await self._whole(line + _GO + payload, timeout_s)

    async def _whole(self, message: bytes, timeout_s: float) -> CommandAnswer:
        exchange = asyncio.create_task(self._exchange(message, timeout_s))
        exchange.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(exchange)

    async def _exchange(self, message: bytes, timeout_s: float) -> CommandAnswer:
        async with self._one_call:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._send(message)
                    output = await self._reader.readuntil(self._nonce.encode())
                    status, microseconds = (await self._reader.readline()).split()
                return CommandAnswer(
                    int(status), output[: -len(self._nonce)], int(microseconds) / 1e6
                )
            except asyncio.IncompleteReadError as error:
                raise ShellGone("its shell ended", error.partial) from None
            except TimeoutError:
                raise ShellStuck(f"its shell did not answer within {timeout_s:.0f} s") from None
            except asyncio.LimitOverrunError:
                raise ShellStuck(f"its shell answered over {CHANNEL_BYTES >> 20} MiB") from None
            except ValueError as error:
                raise ShellGone(f"its shell cannot be talked to: {error}") from None
            except OSError as error:
                said = await self._last_words()
                raise ShellGone(f"its shell cannot be talked to: {error}", said) from None

    async def _last_words(self) -> bytes:
        """Bytes that it wrote before it closed its end."""
        said = b""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LAST_WORDS_S):
                while piece := await self._reader.read(1 << 16):
                    said += piece
        return said


def _quote(argument: str | bytes) -> bytes:
    raw = argument.encode() if isinstance(argument, str) else argument
    return b"'" + raw.replace(b"'", b"'\\''") + b"'"
