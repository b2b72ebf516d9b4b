"""Warm-start rollouts are well-formed and give nothing away about the right edit."""

import random
from collections import Counter

from bundled.forms import BUNDLED_AGENT
from bundled.generator import draw_instance, make_instances
from bundled.trajectories import Writer, Written
from mainspring.agents.bash_block import SUBMIT_SENTINEL, parse_bash_block
from mainspring.agents.protocol import Command

WRITER = Writer(BUNDLED_AGENT)


def commands(written: Written) -> list[Command]:
    found = []
    for call in written.calls:
        action = parse_bash_block(call.text)
        assert isinstance(action, Command)
        found.append(action)
    return found


def test_a_rollout_reads_edits_and_submits() -> None:
    (instance,) = make_instances(0, "train", 1)
    written = WRITER.rollout(instance, instance.fix)
    messages = written.requests[-1].messages
    roles = [message.role.value for message in messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    read, edit, submit = commands(written)
    assert read.command == f"cat {instance.module}"
    assert edit.command == instance.fix.sed_command(instance.module)
    assert submit.command == f"echo {SUBMIT_SENTINEL}"
    assert instance.task.files[instance.module] in messages[3].text


def test_the_edit_is_drawn_uniformly_from_the_plausible_ones() -> None:
    rng = random.Random(0)
    (instance,) = make_instances(1, "train", 1)
    num_draws = 3000
    drawn = Counter(commands(WRITER.draw(instance, rng))[1].command for _ in range(num_draws))
    assert len(drawn) == len(instance.edits)
    for count in drawn.values():
        assert abs(count / num_draws - 1 / len(instance.edits)) < 0.05


def test_over_many_tasks_the_right_edit_is_as_rare_as_a_blind_guess() -> None:
    rng = random.Random(0)
    right = expected = 0.0
    for _ in range(1000):
        instance = draw_instance(rng, "train", "t")
        edit = commands(WRITER.draw(instance, rng))[1].command
        right += edit == instance.fix.sed_command(instance.module)
        expected += 1 / len(instance.edits)
    assert abs(right - expected) / 1000 < 0.05
