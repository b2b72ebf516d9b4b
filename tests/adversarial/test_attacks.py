"""Every attack on every backend: contained, and nobody else notices."""

import pytest

from infra.sandbox.protocol import Sandbox
from infra.sandbox.session import PatchRefused
from tests.adversarial.attacks import ATTACKS
from tests.conformance.sandbox_backend import output, run

MAX_KILLS = 5
"""Before nothing is left of an attack that grows: where it has all processes, a kill may not get
one."""


async def answers_again(victim: Sandbox) -> bool:
    for _ in range(MAX_KILLS):
        await run(victim, "kill -9 -1")  # what the attack left running; the shell survives it
        if (await run(victim, "echo alive")).output == b"alive\n":
            return True
    return False


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.tried.replace(" ", "-"))
async def test_contained(attack, backend, neighbour, victim, happened):
    result = await run(victim, attack.command, attack.timeout_s)
    assert b"ESCAPED" not in result.output, result.output[-500:]
    assert len(result.output) <= 1 << 16
    assert await output(neighbour, "echo alive") == b"alive\n"
    assert await answers_again(victim)
    try:
        made = await victim.diff()
        assert not made or attack.patch_has in made
        patch = "patch made"
    except PatchRefused:
        patch = "patch refused"
    await output(victim, "test ! -e /tmp/ran")  # nothing that diff runs is the agent's to name
    ended = "killed at the timeout" if result.timed_out else f"ended with {result.returncode}"
    happened(f"no escape; {ended}; {patch}")
