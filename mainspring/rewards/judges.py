"""Judges of a configuration: which of them a rollout asks, and whether each can be asked. Pure.

Invariant: what cannot be asked is refused before a run is stored. A judge whose parts are all that
a reward has is required: without it there is nothing to score. Imported by `scoring`, and by the
activity that begins a rollout.
"""

from mainspring.config.agents.judges import JudgeScope
from mainspring.config.reward import JUDGE
from mainspring.config.run import RunConfig
from mainspring.errors import ConfigError
from mainspring.programs.profiles.choice import is_program
from mainspring.protocol.judging import JudgePlan
from mainspring.rewards.judge_prompts import check_prompt


def judge_plans(config: RunConfig) -> list[JudgePlan]:
    """Plans of what a rollout asks: one for each part of the reward that is a judge's."""
    parts = config.reward.parts
    is_all = all(part.name == JUDGE for part in parts)
    plans: list[JudgePlan] = []
    for part in parts:
        if part.judge is not None and part.of is not None:
            judge = config.judges[part.judge]
            # A request may first wait until this process has room for it.
            attempt_s = 2 * judge.request_timeout_s
            required = judge.required or is_all
            plans.append(
                JudgePlan(judge=part.judge, of=part.of, attempt_s=attempt_s, required=required)
            )
    return plans


def check_judges(config: RunConfig) -> None:
    """Raises ConfigError for the first that could not be asked as the reward needs."""
    for part in config.reward.parts:
        if part.judge is None or part.of is None:
            continue
        programs = [name for name, agent in config.agent_sections.items() if is_program(agent)]
        if part.of is JudgeScope.TURNS and programs:
            kind = config.agent_sections[programs[0]].kind
            raise ConfigError(
                f'campaign {config.name}: reward part {part.label}: of = "turns" needs agents '
                f"whose turns Mainspring takes, and {programs[0]}.kind = {kind!r} is a program",
                remedy=f'set of = "rollout", or another {programs[0]}.kind',
            )
        judge = config.judges[part.judge]
        try:
            check_prompt(judge, part.of)
        except ConfigError as error:
            raise ConfigError(
                f'campaign {config.name}: judges.{part.judge}.prompt, with of = "{part.of}": '
                f"{error.message}",
                remedy=error.remedy,
            ) from error
