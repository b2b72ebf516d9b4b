"""Dollars of a reply where a rollout's are limited; what is not counted is not free."""

import pytest
from store_records import task

from activities.replies.asking import limited_cost
from infra.db.cache import RolloutFacts
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.sampling import SamplingConfig
from mainspring.errors import ConfigError
from mainspring.ids import CampaignId
from mainspring.status import FaultKind
from mainspring.trajectories.turns import Call


def facts(**agent: object) -> RolloutFacts:
    config = EvaluationConfig.model_validate(
        {
            "name": "limited",
            "agent": agent,
            "policy": {"api": "openai", "model": "m"},
            "prices": {"m": {"input": 1.0, "output": 2.0}},
        }
    )
    return RolloutFacts(CampaignId("limited"), config, task(0), 0.0, None, SamplingConfig())


def reply(*counted: int | None) -> Call:
    return Call(0, None, 0, (), (), (), (), "text", "stop", 0.1, *counted)


def test_a_reply_that_is_not_counted_ends_a_run_with_a_limit() -> None:
    assert limited_cost(facts(cost_limit=1.0), reply(100, 50), None) == pytest.approx(200e-6)
    assert limited_cost(facts(), reply(None, None), None) == 0.0
    with pytest.raises(ConfigError, match="the endpoint of m does not count the tokens") as refused:
        limited_cost(facts(cost_limit=1.0), reply(None, None), None)
    assert refused.value.fault is FaultKind.CONFIG_UNUSABLE
