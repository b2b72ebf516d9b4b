"""Every installed client, while what it depends on is killed at 50 % and at 90 % of its calls.

    python -m pytest -m long -s tests/gateway/test_client_kills.py

All clients play at once, ten calls each (aider, which has no tools: four), a reply takes two
seconds. Each is a rollout; what is shared is killed when all clients wait for their replies.
Prints one JSON line for each client and kill (`client_record.Cell`), of which `client_table` makes
tables. `make test-agents` installs the clients; those that are missing are left out.
MAINSPRING_TEST_CLIENTS names some of them.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cluster import bwrap_or_skip
from temporalio.client import WorkflowHandle

from cli.operations.machine.embedded_stack import temporary
from infra.bundles.store import BundleMissing, mounts_for
from infra.db.database import Database
from infra.db.training import policies
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.sandbox import SandboxConfig
from mainspring.errors import MainspringError
from mainspring.ids import CampaignId, GroupId, RolloutId
from mainspring.status import RolloutPhase
from tests.chaos.fault_roles import Role
from tests.gateway.client_fleet import ClientFleet, client_fleet
from tests.gateway.client_record import Shape, cell, faults_of, shape_of
from tests.gateway.kill_plan import NAMES, OWN, SHARED, SHARES, Phase
from tests.gateway.scripted_process import NUM_CALLS
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
ROUND_S = 600.0
HELD_S = 400.0
"""Until a client comes to the turn at which something is killed."""
SETTLING_S = 2.0
"""After a kill: those that lost a connection ask again."""
NUM_EDITS = 4
"""Calls of aider."""
TURNS = {"aider": (NUM_EDITS // 2, NUM_EDITS - 1)}
USUAL = (NUM_CALLS // 2, NUM_CALLS - 1)
"""Turns at half and at nine tenths of the calls."""
OPTIONS: dict[str, dict[str, Any]] = {"aider": {"files": ["calc.py"]}}
POLICY = PolicyConfig(model="scripted", max_context=400_000, max_new_tokens=8192)
SANDBOX = SandboxConfig(memory_mb=8192, max_pids=512, disk_mb=2048)
UNDISTURBED: dict[str, Shape] = {}
"""By client."""


def clients() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in os.environ.get("MAINSPRING_TEST_CLIENTS", " ".join(NAMES)).split():
        fields: dict[str, Any] = {"kind": name, "options": OPTIONS.get(name, {})}
        try:
            mounts_for(AgentConfig.model_validate(fields))
        except BundleMissing:
            continue
        found[name] = fields
    return found


@pytest.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClientFleet]:
    if not (found := clients()):
        pytest.skip("no client is installed: see `mainspring agents add`")
    folder: Path = tmp_path_factory.mktemp("fleet")
    await bwrap_or_skip(folder / "probe")
    async with (
        temporary("mainspring-kills-") as stack,
        client_fleet(stack, folder, len(found)) as fleet,
    ):
        yield fleet


class Round:
    """All clients, one rollout each."""

    def __init__(self, fleet: ClientFleet) -> None:
        self.fleet = fleet
        self.rollouts: dict[str, RolloutId] = {}
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.turns: dict[str, list[int]] = {}
        self.killed_at: dict[tuple[str, int], float] = {}
        self._made: dict[str, tuple[CampaignId, GroupId]] = {}
        self._handles: dict[str, WorkflowHandle[Any, Any]] = {}

    async def make(self, *, kills: bool, phase: Phase | None = None) -> None:
        """The plan is written before anything is asked."""
        cluster = self.fleet.cluster
        model = self.fleet.commands[Role.ROLLOUT][2]
        for name, program in clients().items():
            campaign, group, [rollout] = await cluster.make_rollouts(
                program=program, step_limit=50, policy=POLICY, sandbox=SANDBOX
            )
            await policies.put_first_policy(cluster.db, campaign, model)
            self.rollouts[name], self._made[name] = rollout, (campaign, group)
            self.turns[name] = list(TURNS.get(name, USUAL)) if kills else []
        plan = {str(rollout): self.turns[name] for name, rollout in self.rollouts.items()}
        self.fleet.plan.write(plan, phase)

    async def start(self) -> None:
        for name, rollout in self.rollouts.items():
            campaign, group = self._made[name]
            self.began[name] = time.time()
            self._handles[name] = await self.fleet.cluster.start(rollout, campaign, group)

    async def until_ended(self) -> None:
        await asyncio.gather(*map(self._until_ended, self.rollouts))

    async def _until_ended(self, name: str) -> None:
        """One that does not end is cancelled: the next round needs its place."""
        try:
            await until(lambda: self.has_ended(name), ROUND_S)
        except TimeoutError:
            self.ended[name] = time.time()
            await self._handles[name].cancel()

    async def has_ended(self, name: str) -> bool:
        self.fleet.check()
        if name not in self.ended:
            try:
                row = await self.fleet.cluster.row(self.rollouts[name])
            except MainspringError:
                return False  # the store was killed
            if row.phase is RolloutPhase.DONE:
                self.ended[name] = time.time()
        return name in self.ended

    async def until_held(self, name: str, turn: int) -> bool:
        """False: it does not come there."""

        async def is_held() -> bool:
            held = self.fleet.plan.marked_at("held", self.rollouts[name], turn)
            return held is not None or await self.has_ended(name)

        try:
            await until(is_held, HELD_S)
        except TimeoutError:
            return False
        return name not in self.ended

    def let_go(self, name: str, turn: int) -> None:
        self.fleet.plan.mark("go", self.rollouts[name], turn)

    async def disturb(self, role: Role) -> None:
        if role in OWN:
            await asyncio.gather(*(self._kill_own(role, name) for name in self.rollouts))
            return
        for place in range(len(SHARES)):
            wanted = {name: turns[place] for name, turns in self.turns.items()}
            are_held = await asyncio.gather(*(self.until_held(*each) for each in wanted.items()))
            held = [each for each, is_held in zip(wanted.items(), are_held, strict=True) if is_held]
            for each in held:
                self.killed_at[each] = time.time()
            await self.fleet.kill(role)
            await asyncio.sleep(SETTLING_S)
            for each in held:
                self.let_go(*each)

    async def _kill_own(self, role: Role, name: str) -> None:
        rollout = self.rollouts[name]
        for turn in self.turns[name]:
            if not await self.until_held(name, turn):
                return
            self.killed_at[name, turn] = time.time()
            if role is Role.SANDBOX:
                await self.fleet.kill_sandbox(rollout)
            else:
                await self.fleet.kill_client(rollout)
            self.let_go(name, turn)

    async def tell(self, killed: str) -> list[str]:
        """A line for each cell; what is amiss."""
        db: Database = self.fleet.cluster.db
        asks = self.fleet.plan.notes("asks")
        amiss: list[str] = []
        for name, rollout in self.rollouts.items():
            wrong = await faults_of(db, rollout, UNDISTURBED.get(name))
            seconds = round(self.ended[name] - self.began[name], 1)
            for share, turn in zip(SHARES, self.turns[name], strict=False):
                died = self.fleet.plan.marked_at("died", rollout, turn)
                at = died or self.killed_at.get((name, turn))
                if at is None:
                    wrong.append(f"nothing was killed at turn {turn}")
                told = await cell(
                    *(db, asks, rollout, turn, at or time.time(), self.turns[name]),
                    client=name,
                    killed=killed,
                    at=share,
                    seconds=seconds,
                    amiss=wrong,
                )
                print(json.dumps(told.as_line()), flush=True)
            if not self.turns[name]:
                shape = await shape_of(db, rollout)
                line = {
                    "client": name,
                    "calls": shape.num_calls,
                    "seconds": seconds,
                    "amiss": wrong,
                }
                print(json.dumps(line), flush=True)
            amiss += [f"{name}: {each}" for each in wrong]
        return amiss


async def test_undisturbed(fleet: ClientFleet) -> None:
    played = Round(fleet)
    await played.make(kills=False)
    await played.start()
    await played.until_ended()
    assert await played.tell("nothing") == []
    for name, rollout in played.rollouts.items():
        UNDISTURBED[name] = shape = await shape_of(fleet.cluster.db, rollout)
        assert shape.num_calls >= max(TURNS.get(name, USUAL)) + 1
        # aider shows the model its files anew in each request.
        assert shape.num_roots == (NUM_EDITS if name == "aider" else 1), name


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name.lower())
async def test_a_gateway_that_dies(fleet: ClientFleet, phase: Phase) -> None:
    played = Round(fleet)
    await played.make(kills=True, phase=phase)
    await played.start()
    await played.until_ended()
    assert await played.tell(f"gateway, {phase}") == []


@pytest.mark.parametrize("role", [*OWN, *SHARED], ids=lambda role: role.value)
async def test_what_dies_while_a_reply_is_made(fleet: ClientFleet, role: Role) -> None:
    played = Round(fleet)
    await played.make(kills=True)
    await played.start()
    await played.disturb(role)
    await played.until_ended()
    assert await played.tell(role.value) == []
