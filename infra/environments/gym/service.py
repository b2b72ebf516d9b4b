"""The process of one service: started when it is first needed, watched, started again, ended.

Invariants: a service ends with its node's process (the kernel kills it, and the node's next process
kills what carries the label of this one); it gets none of the node's variables but those that
functions get; it counts as started when it answers while its process lives. One that dies again and
again without having answered a step is EnvironmentBroken, with the last lines of its log. Used by
`services`.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from infra.environments.gym.commands import command_of
from infra.environments.verifiers.start import REFUSED
from infra.functions.labelled import LABEL, kill_labelled
from infra.functions.process import environment_of
from infra.stack.ports import LOOPBACK, holder, is_free, pick
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.environments.protocol import EnvironmentBroken
from mainspring.words.causes import shortened
from mainspring.words.plain_text import plain

MAX_STARTS = 4
"""In a row, of a service that did not answer a step in between."""
RESTART_S = 0.5
"""Before the second start, and twice as long before each further one."""
REFUSED_S = 60.0
"""Until one that told that it can never start is started again: it may be corrected by then."""
FIRST_LOOK_S = 0.05
LAST_LOOK_S = 1.0
PORT_LOOKS = 40
LOOK_S = 5.0
"""For one answer to whether it is there."""
DEATH_S = 0.3
"""Between a kill and the moment when it is known; connections are refused meanwhile."""
LOG_BYTES = 16 << 20
"""A longer log is begun anew at a start; the one before it is kept beside."""
OOM_SCORE = 500
"""When memory runs out the kernel takes the service, not its node."""
LOG_LINES = 6
TAIL_BYTES = 4000
TAIL_CHARS = 500
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class ServiceProcess:
    def __init__(self, name: str, config: EnvironmentConfig, log: Path, label: str) -> None:
        self._name = name
        self._config = config
        self._log = log
        self._label = label
        self._process: asyncio.subprocess.Process | None = None
        self._num_starts = 0
        """Since it answered a step last."""
        self.url = ""
        self.is_broken = False
        """Its log tells why."""
        self._refused_until = 0.0
        """Its last process found that none can start; on the monotonic clock."""

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def has_ended(self) -> bool:
        """Also where it was killed a moment ago, which is known only when it was waited for."""
        if self._process is None:
            return True
        try:
            async with asyncio.timeout(DEATH_S):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.lives else None

    def answered(self) -> None:
        """It took a step."""
        self._num_starts = 0

    async def start(self, is_there: Callable[[str, float], Awaitable[bool]]) -> None:
        """Until it answers at its URL, as `is_there` finds out. Raises EnvironmentBroken."""
        while True:
            await self.stop()
            if time.monotonic() < self._refused_until:
                raise self._refused()
            if self._num_starts >= MAX_STARTS:
                raise self.broken(f"died {MAX_STARTS} times and took no step in between")
            if self._num_starts:
                await asyncio.sleep(RESTART_S * 2 ** (self._num_starts - 1))
            self._num_starts += 1
            await self._launch()
            try:
                async with asyncio.timeout(self._config.start_timeout_s):
                    if await self._comes_up(is_there):
                        return
            except TimeoutError:
                await self.stop()
                raise self.broken(
                    f"did not answer at {self.url} within {self._config.start_timeout_s:g} s",
                    f", or raise environments.{self._name}.start_timeout_s",
                ) from None

    async def stop(self) -> None:
        """With all that it started. Stopping twice is fine."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode == REFUSED:
            self._refused_until = time.monotonic() + REFUSED_S
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(kill_labelled, self._label)
        await process.wait()

    def last_words(self, num_lines: int = LOG_LINES) -> str:
        """The end of its log, in one line."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        lines = [" ".join(plain(line).split()) for line in text.splitlines()]
        return shortened(" / ".join(list(filter(None, lines))[-num_lines:]), TAIL_CHARS)

    def how_it_ended(self) -> str:
        """For messages; empty: it lives."""
        if self._process is None or self._process.returncode is None:
            return ""
        words = self.last_words()
        log = f"; its log ends: {words}" if words else "; it printed nothing"
        return f"its process ended with code {self._process.returncode}{log} ({self._log})"

    def broken(self, problem: str, or_else: str = "") -> EnvironmentBroken:
        self.is_broken = True
        words = self.last_words()
        log = f"its log ends: {words}" if words else "it printed nothing"
        by_hand = f"run environments.{self._name}.command by hand"
        how = by_hand if self._config.command else "let the environment run with verifiers alone"
        return EnvironmentBroken(
            f"environment {self._name}: its service {problem}; {log}",
            remedy=f"{how} and look at {self._log}{or_else}, then start the campaign again",
        )

    def _refused(self) -> EnvironmentBroken:
        self.is_broken = True
        return EnvironmentBroken(
            f"environment {self._name}: {self.last_words(num_lines=1)}",
            remedy=f"correct [environments.{self._name}], or what it names on every sandbox node "
            f"(the log is {self._log}), then start the campaign again",
        )

    async def _launch(self) -> None:
        port = self._config.port or pick()
        await self._wait_for(port)
        self.url = f"http://{LOOPBACK}:{port}"
        words = command_of(self._config, port)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if self._log.exists() and self._log.stat().st_size > LOG_BYTES:
            self._log.replace(self._log.with_suffix(".log.1"))
        is_command = bool(self._config.command)
        named = "command and folder" if is_command else "python and folder"
        variables = environment_of(()) | self._config.variables | {LABEL: self._label}
        with self._log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._config.folder or None,
                    env=variables,
                    start_new_session=True,
                    preexec_fn=partial(_as_child, os.getpid()),
                )
            except (OSError, ValueError) as error:
                raise EnvironmentBroken(
                    f"environment {self._name}: its service cannot be started: {error}",
                    remedy=f"correct environments.{self._name}.{named}, or install on "
                    "every sandbox node what it names, then start the campaign again",
                ) from None

    async def _wait_for(self, port: int) -> None:
        """Until the port is free: what was killed may still have it. Raises EnvironmentBroken."""
        for _ in range(PORT_LOOKS):
            if is_free(port):
                return
            await asyncio.sleep(FIRST_LOOK_S)
        raise EnvironmentBroken(
            f"environment {self._name}: port {port} of {LOOPBACK} is in use by {holder(port)}",
            remedy=f"stop that process, or set environments.{self._name}.port = 0, which chooses a "
            "free one for each campaign, then start the campaign again",
        )

    async def _comes_up(self, is_there: Callable[[str, float], Awaitable[bool]]) -> bool:
        """False: it ended."""
        assert self._process is not None, "a service is waited for before it is started"
        ending = asyncio.create_task(self._process.wait())
        looking = asyncio.create_task(self._looked(is_there))
        try:
            await asyncio.wait((ending, looking), return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
            return not ending.done()
        finally:
            ending.cancel()
            looking.cancel()

    async def _looked(self, is_there: Callable[[str, float], Awaitable[bool]]) -> None:
        look_s = FIRST_LOOK_S
        while not await is_there(self.url, LOOK_S):
            await asyncio.sleep(look_s)
            look_s = min(LAST_LOOK_S, 2 * look_s)


def _as_child(parent: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)
    Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
