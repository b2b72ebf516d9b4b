"""Runs a campaign of one home folder to its end while its processes are killed at random.

    python -m tests.chaos.fault_schedule --home DIR --seed 3 -- quickstart --schedule reproducible

Kills with SIGKILL, one fault every 20 to 40 s, and starts the command again when it has died. Roles
are drawn at random; with `--even` each is killed once before any is killed again. With `--freeze`
half of the faults are SIGSTOP for 30 to 180 s in the place of SIGKILL.
Prints one JSON object: the faults, the wall time, how long after each fault the next reply was
stored, tokens that engines generated and that are stored, and the campaign's fingerprint.
`mainspring campaign fingerprint --against` compares two.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
from sqlalchemy import func, select

from infra.db.connect import open_database
from infra.db.runs import campaigns
from infra.db.tables.models import CallRow, PartialCallRow
from infra.db.tables.program_rows import ModelRequestRow
from infra.policy.serving import needs_same_bits
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId
from tests.chaos.fault_roles import NEVER_FROZEN, Draw, Freezer, Role
from tests.processes import words

MAX_STARTS = 60
"""Of the command; each fault of FLEET or EVERYTHING takes one."""
POLL_S = 0.5
LOOK_S = 5.0
"""Between two looks at all processes of the machine, which takes a tenth of a second."""


@dataclass(slots=True)
class Fault:
    role: Role
    at_s: float
    """Since the first start."""
    num_killed: int
    wall_time: float
    """Unix seconds, when all were killed."""
    next_reply_s: float | None = None
    """Until a reply was stored that was asked for after the kill; None: there was none, or the
    first of all was still to come."""
    frozen_s: float = 0.0
    """It was stopped for so long, unless it was ended before; 0: killed."""
    num_waiting: int = 0
    """Requests of programs whose replies were being made then."""


@dataclass(slots=True)
class Outcome:
    seed: int
    wall_s: float = 0.0
    num_starts: int = 0
    faults: list[Fault] = field(default_factory=list)
    median_next_reply_s: dict[str, float] = field(default_factory=dict)
    """By role."""
    num_generated_tokens: int = 0
    """By engines, as far as they could be asked: often, and before each kill."""
    num_stored_tokens: int = 0
    """Of all replies, whole ones and pieces."""
    fingerprint: dict[str, object] | None = None
    """Of a campaign with the reproducible schedule; others have none."""


@dataclass(slots=True)
class TokenMeter:
    """Adds up what the engines of a home count from their starts."""

    total: int = 0
    _last: dict[int, int] = field(default_factory=dict)
    """By the engine's process."""
    _ports: dict[int, str] = field(default_factory=dict)

    def find(self, home: Path) -> None:
        self._ports = {}
        for role, process in processes(home):
            if role is Role.ENGINE:
                line = words(process)
                self._ports[process.pid] = line[line.index("--port") + 1]

    def read(self) -> None:
        for pid, port in self._ports.items():
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/server_info", timeout=2.0)
                now = int(answer.json()["internal_states"][0]["num_generated_tokens"])
            except httpx.HTTPError:
                continue  # it starts, or has just been killed
            self.total += now - self._last.get(pid, 0)
            self._last[pid] = now


def processes(home: Path) -> Iterator[tuple[Role, psutil.Process]]:
    """What runs for this home folder, each under its own role."""
    # Postgres refuses to run as root: its data then lies where another user may read.
    folders = tuple({str(home), str((home / "postgres").resolve())})
    for process in psutil.process_iter():
        try:
            line = words(process)
            if not any(
                each == mine or each.startswith(f"{mine}/") for mine in folders for each in line
            ):
                continue
            if (role := _role(line)) is Role.TRAINER:
                children = list(_ray(process))
                works = any(role is Role.RANK and _prints(rank) for role, rank in children)
                yield Role.TRAINER if works else Role.STANDBY, process
                yield from children if works else ()
            elif role is not None:
                yield role, process
                if role is Role.SANDBOX:
                    yield from _programs(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue


def _role(line: list[str]) -> Role | None:
    if not line:
        return None
    program = Path(line[0]).name
    if program == "bwrap":
        return Role.SANDBOX
    if program == "postgres":
        return Role.POSTGRES
    if program.startswith("temporal"):
        return Role.TEMPORAL
    if "serve" in line:
        return Role.ENGINE
    for word, role in (
        ("rollout", Role.ROLLOUT),
        ("sandbox", Role.NODE),
        ("trainer", Role.TRAINER),
        ("gateway", Role.GATEWAY),
    ):
        if "worker" in line and word in line:
            return role
    return None


def _ray(trainer: psutil.Process) -> Iterator[tuple[Role, psutil.Process]]:
    for child in trainer.children(recursive=True):
        try:
            line = child.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if line and Path(line[0]).name == "raylet":
            yield Role.RAYLET, child
        elif line and line[0].startswith("ray::RankActor"):
            yield Role.RANK, child


def _programs(sandbox: psutil.Process) -> Iterator[tuple[Role, psutil.Process]]:
    for child in sandbox.children(recursive=True):
        try:
            if Path(child.name()).name.startswith("python"):
                yield Role.PROGRAM, child
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue


def _prints(rank: psutil.Process) -> bool:
    """Whether it has begun: from then on it writes to a log of its own."""
    return any(Path(each.path).name.startswith("rank") for each in rank.open_files())


def _fork_servers(command: int) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(command).children():
        try:
            if "cli.fork_server" in words(child):
                found.append(child)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def kill(
    role: Role, home: Path, command: subprocess.Popen[bytes] | None, rng: random.Random
) -> int:
    """How many processes were killed; 0 when nothing of this role runs now."""
    found = choose(role, home, command, rng)
    for process in found:
        try:
            if role is Role.SANDBOX:
                for child in process.children(recursive=True):
                    child.kill()
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return len(found)


def choose(
    role: Role, home: Path, command: subprocess.Popen[bytes] | None, rng: random.Random
) -> list[psutil.Process]:
    """Processes that a fault of this role hits; empty when nothing of it runs now. `command`: the
    one that keeps the others running, where there is one."""
    found = [process for each, process in processes(home) if role in (each, Role.EVERYTHING)]
    if command is not None and role in (Role.FLEET, Role.EVERYTHING):
        found.append(psutil.Process(command.pid))
    if command is not None and role in (Role.FORKS, Role.EVERYTHING):
        found += _fork_servers(command.pid)
    if role is Role.POSTGRES:
        found += [child for each in found for child in each.children(recursive=True)]
    elif role not in (Role.EVERYTHING, Role.FLEET) and found:
        found = [rng.choice(found)]
    return found


def run(
    home: Path,
    seed: int,
    words: list[str],
    *,
    even: bool = False,
    pause_s: tuple[float, float] = (20.0, 40.0),
    roles: tuple[Role, ...] = tuple(Role),
    max_faults: int | None = None,
    freeze_s: tuple[float, float] | None = None,
) -> Outcome:
    """Raises RuntimeError when the campaign cannot be finished."""
    rng, outcome, started = random.Random(seed), Outcome(seed), time.time()
    draw, meter, look_at = Draw(roles, rng, even=even), TokenMeter(), 0.0
    freezer = Freezer()
    command = _start(home, words, outcome)
    due = time.time() + rng.uniform(*pause_s)
    while True:
        time.sleep(POLL_S)
        freezer.thaw()
        if time.time() >= look_at:
            meter.find(home)
            meter.read()
            look_at = time.time() + LOOK_S
        code = command.poll()
        if code == 0:
            break
        if code is not None:
            if outcome.num_starts == MAX_STARTS:
                raise RuntimeError(f"the command ended {MAX_STARTS} times: see {_log(home)}")
            command = _start(home, words, outcome)
        if time.time() < due or (max_faults is not None and len(outcome.faults) >= max_faults):
            continue
        meter.find(home)
        meter.read()
        due = time.time() + 1.0
        for role in draw.candidates():
            now = time.time()
            frozen_s = 0.0
            if freeze_s is not None and role not in NEVER_FROZEN and rng.random() < 0.5:
                frozen_s = rng.uniform(*freeze_s)
                found = choose(role, home, command, rng)
                freezer.freeze(found, frozen_s)
                number = len(found)
            else:
                number = kill(role, home, command, rng)
            if number:
                draw.killed(role)
                fault = Fault(role, now - started, number, time.time(), frozen_s=frozen_s)
                outcome.faults.append(fault)
                how = f"froze for {frozen_s:.0f} s" if frozen_s else "killed"
                told = f"{now - started:7.1f} s  {how} {role} ({number})"
                print(told, file=sys.stderr, flush=True)
                due = now + rng.uniform(*pause_s)
                break
    freezer.thaw(all_of_them=True)
    outcome.wall_s = time.time() - started
    outcome.num_generated_tokens = meter.total
    return outcome


def _start(home: Path, words: list[str], outcome: Outcome) -> subprocess.Popen[bytes]:
    outcome.num_starts += 1
    with _log(home).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "mainspring", *words, "--home", str(home), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "MAINSPRING_HOME": str(home)},
            start_new_session=True,
        )


def _log(home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    return home.with_name(f"{home.name}.command.log")


def fingerprint(home: Path, campaign: str) -> dict[str, object]:
    asked = ["campaign", "fingerprint", campaign, "--calls", "--json", "--home", str(home)]
    told = subprocess.run(
        [sys.executable, "-m", "mainspring", *asked], capture_output=True, text=True, check=False
    )
    if told.returncode:
        raise RuntimeError(f"no fingerprint of {campaign}: {told.stderr}")
    return json.loads(told.stdout)


async def is_reproducible(home: Path, campaign: str) -> bool:
    async with open_database(load_settings(home)) as db:
        return needs_same_bits((await campaigns.get(db, CampaignId(campaign))).config)


async def measure(home: Path, outcome: Outcome) -> None:
    """Fill in how long after each fault the next reply was stored, and the tokens stored."""
    faults = outcome.faults
    async with open_database(load_settings(home)) as db, db.transaction() as connection:
        first = await connection.scalar(select(func.min(CallRow.created_at)))
        for fault in faults:
            then = datetime.fromtimestamp(fault.wall_time, UTC)
            if first is None or then < first:
                continue
            # What was on its way then proves nothing.
            asked_at = CallRow.created_at - func.make_interval(0, 0, 0, 0, 0, 0, CallRow.latency_s)
            stored = await connection.scalar(
                select(func.min(CallRow.created_at)).where(asked_at > then)
            )
            fault.next_reply_s = (stored - then).total_seconds() if stored else None
            row = ModelRequestRow
            waiting = select(func.count()).where(row.asked_at <= then, row.answered_at > then)
            fault.num_waiting = await connection.scalar(waiting) or 0
        for row in (CallRow, PartialCallRow):
            replies = await connection.scalars(select(row.completion_ids))
            outcome.num_stored_tokens += sum(map(len, replies))
    for role in Role:
        waits = [
            fault.next_reply_s
            for fault in faults
            if fault.role is role and fault.next_reply_s is not None
        ]
        if waits:
            outcome.median_next_reply_s[role] = statistics.median(waits)


def mainspring(word: str, home: Path) -> None:
    """What it prints goes beside the JSON object."""
    command = [sys.executable, "-m", "mainspring", word, "--home", str(home)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="Seed of the faults.")
    parser.add_argument("--campaign", default="quickstart-s0-reproducible")
    parser.add_argument("--max-faults", type=int, default=None)
    parser.add_argument("--pause-s", type=float, nargs=2, default=(20.0, 40.0))
    parser.add_argument("--role", type=Role, nargs="*", default=tuple(Role))
    parser.add_argument("--freeze", action="store_true", help="Freeze in half of the faults.")
    parser.add_argument("--freeze-s", type=float, nargs=2, default=(30.0, 180.0))
    parser.add_argument("--even", action="store_true", help="Kill each role equally often.")
    parser.add_argument("words", nargs="+", help="Words of the mainspring command.")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    home = given.home.absolute()
    outcome = run(
        home,
        given.seed,
        given.words,
        pause_s=tuple(given.pause_s),
        roles=tuple(given.role),
        max_faults=given.max_faults,
        even=given.even,
        freeze_s=tuple(given.freeze_s) if given.freeze else None,
    )
    mainspring("up", home)
    asyncio.run(measure(home, outcome))
    if asyncio.run(is_reproducible(home, given.campaign)):
        outcome.fingerprint = fingerprint(home, given.campaign)
    mainspring("down", home)
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
