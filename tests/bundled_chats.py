"""Rollouts of the bundled model's warm start as chats, for tests of data and of suspicions."""

import random

from bundled.forms import BUNDLED_AGENT
from bundled.generator import TaskInstance
from bundled.trajectories import Writer


def drawn_chat(instance: TaskInstance, rng: random.Random) -> list[dict[str, str]]:
    """Read the module, try one plausible edit, submit."""
    written = Writer(BUNDLED_AGENT).draw(instance, rng)
    said = [(each.role.value, each.text) for each in written.requests[-1].messages]
    said.append(("assistant", written.calls[-1].text))
    return [{"role": role, "content": content} for role, content in said]
