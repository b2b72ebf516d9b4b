"""Warm-start data of the bundled model: rollouts in their form, with a blind guess inside.

Invariant: the edit is drawn uniformly from the plausible ones, so the warm start teaches the
protocol and not which edit is right; that is left to the reward. Prompts and
observations are the very ones a rollout shows. Pure.
"""

import random

from bundled.bugs import Edit
from bundled.generator import TaskInstance
from mainspring.agents.bash_block import SUBMIT_SENTINEL
from mainspring.agents.bundled import BundledAgent
from mainspring.agents.observation import render_observation
from mainspring.agents.protocol import Message
from mainspring.config.agents.agent import AgentConfig

AGENT = BundledAgent(AgentConfig(kind="bundled"))
CAT_THOUGHT = "I read {module}."
EDIT_THOUGHT = "I change {old} to {new}."
SUBMIT_THOUGHT = "I submit."


def warm_start_messages(instance: TaskInstance, rng: random.Random) -> list[Message]:
    """Read the module, try one plausible edit, submit."""
    return rollout_messages(instance, rng.choice(instance.edits))


def rollout_messages(instance: TaskInstance, edit: Edit) -> list[Message]:
    """The rollout that tries `edit`."""
    module = instance.module
    edit_thought = EDIT_THOUGHT.format(old=edit.old.strip(), new=edit.new.strip())
    return [
        *AGENT.opening(instance.task),
        _reply(CAT_THOUGHT.format(module=module), f"cat {module}"),
        _observation(instance.task.files[module]),
        _reply(edit_thought, edit.sed_command(module)),
        _observation(""),
        _reply(SUBMIT_THOUGHT, f"echo {SUBMIT_SENTINEL}"),
    ]


def _reply(thought: str, command: str) -> Message:
    return {"role": "assistant", "content": f"THOUGHT: {thought}\n\n```bash\n{command}\n```"}


def _observation(output: str) -> Message:
    text = render_observation(
        0,
        output.encode(),
        timed_out=False,
        timeout_s=0.0,
        limit_chars=len(output) + 1,
        turns_left=None,
    )
    return {"role": "user", "content": text}
