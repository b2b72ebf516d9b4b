"""Settings of a campaign's agents that mean nothing together, in each section that may play.

A table like those of `pairs` and `leftovers`, but by section: a warning names the one that it is
about. Pure; imported by `pairs`.
"""

from collections.abc import Iterator

from mainspring.config.files.leftovers import Together, unread
from mainspring.config.training.algorithm import Overlong
from mainspring.programs.profiles.choice import is_program

OF_PROGRAMS = ("version", "train", "requests_per_minute", "parallel_requests")
"""Fields of [agent] that are read where a program plays."""


def of_agents(config: Together) -> Iterator[str]:
    """A line for each mistake."""
    trainer = config.trainer
    for section, agent in config.agent_sections.items():
        has_one_turn = agent.step_limit == 1 and not is_program(agent)
        if trainer.overlong is Overlong.MASK and has_one_turn:
            yield (
                f'trainer.overlong = "mask" with {section}.step_limit = 1: a rollout that does '
                "not end in its first turn is not trained on"
            )
        if not is_program(agent) and ":" not in agent.kind:
            needed = f"a program as {section}.kind"
            if section == "agent":  # whose limits such a program has
                needed += ", or one that tasks ask for by its kind"
            yield from unread(section, agent, OF_PROGRAMS, needed)
        if agent.command_timeout_s > agent.rollout_timeout_s:
            yield (
                f"{section}.command_timeout_s = {agent.command_timeout_s:g} is more than "
                f"rollout_timeout_s = {agent.rollout_timeout_s:g}, which ends a rollout before"
            )
    section, longest = max(
        config.agent_sections.items(), key=lambda named: named[1].rollout_timeout_s
    )
    if trainer.quorum is not None and trainer.straggler_s >= longest.rollout_timeout_s:
        yield (
            f"trainer.straggler_s = {trainer.straggler_s:g} is not below "
            f"{section}.rollout_timeout_s = {longest.rollout_timeout_s:g}: trainer.quorum shortens "
            "nothing"
        )
