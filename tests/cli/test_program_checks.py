"""What a program cannot play is refused before anything is stored, with what to change."""

import pytest
from pydantic import ValidationError

from cli.operations.checks.named_parts import check_named
from cli.operations.runs import campaign_launch
from infra.db.database import Database
from mainspring.algorithms.schedule import Schedule
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.parallel import Device
from mainspring.errors import UsageError
from mainspring.rewards.scoring import check_parts
from mainspring.status import PolicyApi

PROGRAM = AgentConfig(kind="command", options={"command": "true"})


def campaign(agent: AgentConfig, **policy: PolicyApi) -> CampaignConfig:
    return CampaignConfig(name="t", agent=agent, policy=PolicyConfig(model="m", **policy))


async def test_an_endpoint_in_text_answers_programs_of_evaluations_and_trains_none(
    db: Database,
) -> None:
    at_endpoint = PolicyConfig(model="m", api=PolicyApi.OPENAI)
    check_named(campaign(PROGRAM))
    check_named(EvaluationConfig(name="t", split="test", agent=PROGRAM, policy=at_endpoint))
    with pytest.raises(UsageError, match="gives no tokens to train on") as refused:
        await campaign_launch.create(db, campaign(PROGRAM, api=PolicyApi.OPENAI))
    assert "mainspring eval run" in refused.value.remedy


def test_a_command_that_is_missing_and_an_unknown_client_are_named() -> None:
    with pytest.raises(UsageError, match="has no command"):
        check_named(campaign(AgentConfig(kind="command")))
    with pytest.raises(UsageError, match="no agent is called 'codx'") as unknown:
        check_named(campaign(AgentConfig(kind="codx")))
    assert "codex" in unknown.value.remedy and "bash" in unknown.value.remedy
    with pytest.raises(UsageError, match="no reply parser is called 'yaml'"):
        check_named(campaign(PROGRAM.model_copy(update={"tool_parser": "yaml"})))


def test_a_reproducible_campaign_has_no_program() -> None:
    with pytest.raises(ValidationError, match=r"agent\.kind = an agent such as"):
        CampaignConfig(
            name="t",
            agent=PROGRAM,
            trainer=TrainerConfig(device=Device.CPU),
            schedule=Schedule.REPRODUCIBLE,
        )


def test_a_reproducible_campaign_has_no_section_of_a_program() -> None:
    raw = {"name": "t", "agents": {"coder": PROGRAM}, "policy": {"model": "m"}}
    raw |= {"trainer": {"device": "cpu"}, "schedule": "reproducible"}
    with pytest.raises(ValidationError, match=r"agents\.coder\.kind = an agent such as"):
        CampaignConfig.model_validate(raw)
    CampaignConfig.model_validate({**raw, "agent": {"override": True}})


def test_what_is_wrong_with_a_section_is_told_of_that_section() -> None:
    wrong = AgentConfig(kind="harbor", options={"agent": "codex", "in_image": True})
    config = campaign(AgentConfig()).model_copy(update={"agents": {"coder": wrong}})
    with pytest.raises(UsageError, match=r"agents\.coder\.options\.in_image is for classes"):
        check_named(config)


def test_free_turns_are_below_the_limit_of_every_agent() -> None:
    raw = {"name": "t", "policy": {"model": "m"}}
    raw["reward"] = {"parts": [{"name": "length", "options": {"free_turns": 5}}]}
    raw["agents"] = {"short": {"kind": "command", "step_limit": 5}}
    with pytest.raises(UsageError, match=r"free_turns < agents\.short\.step_limit 5"):
        check_parts(CampaignConfig.model_validate(raw))


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"nonsense": 1}, "has no nonsense"),
        ({"rewards": "yes"}, "rewards of 'remote' is 'yes'"),
        ({"silence_s": 0}, "silence_s"),
        ({"lives": True}, "lives"),
        ({"noise": ["("]}, "regular expression"),
    ],
)
def test_options_of_agents_outside_are_checked(options: dict[str, object], wrong: str) -> None:
    check_named(campaign(AgentConfig(kind="remote")))
    with pytest.raises(UsageError, match=wrong):
        check_named(campaign(AgentConfig.model_validate({"kind": "remote", "options": options})))


def test_a_reproducible_campaign_has_no_agents_outside() -> None:
    with pytest.raises(ValidationError, match=r"agent\.kind = an agent such as"):
        CampaignConfig(
            name="t",
            agent=AgentConfig(kind="remote"),
            trainer=TrainerConfig(device=Device.CPU),
            schedule=Schedule.REPRODUCIBLE,
        )
