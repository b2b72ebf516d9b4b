"""evaluation.sources: what a campaign file may name, under which labels it counts, and what is
refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import counts_of
from mainspring.config.tasks import TaskSet
from mainspring.protocol.campaign import plan_of


def campaign(*sources: dict[str, Any], **fields: Any) -> CampaignConfig:
    evaluation = {"splits": ["dev"], "sources": list(sources)}
    base = {"name": "c", "policy": {"model": "/m"}, "tasks": {"source": "own"}}
    return CampaignConfig.model_validate({**base, "evaluation": evaluation, **fields})


SWE = {"source": "org/SWE-bench_Verified", "limit": 50, "step_limit": 80, "agent": "long"}
AGENTS = {"long": {"kind": "tools"}}


def test_a_source_counts_as_a_further_split_under_its_name() -> None:
    config = campaign(SWE, {"source": "bundled", "split": "heldout", "name": "toy"}, agents=AGENTS)
    assert plan_of(config).eval_splits == ["dev", "SWE-bench_Verified.test", "toy"]
    assert config.splits == ("train", "dev", "SWE-bench_Verified.test", "toy")
    assert config.task_set("dev") == TaskSet("own", "dev")
    assert config.task_set("SWE-bench_Verified.test") == TaskSet(
        "org/SWE-bench_Verified", "test", limit=50, agent="long"
    )
    assert config.task_set("toy") == TaskSet("bundled-s0", "heldout", 128, is_bundled=True)
    assert config.agents_of_sets == {"SWE-bench_Verified.test": "long"}


def test_its_limits_hold_for_every_agent_and_for_its_tasks_alone() -> None:
    config = campaign({**SWE, "rollout_timeout_s": 60}, agents=AGENTS)
    agents = [config.agent, config.agents["long"]]
    inside = config.in_set("SWE-bench_Verified.test")
    for before, limited in zip(agents, (inside.agent, inside.agents["long"]), strict=True):
        assert limited == before.model_copy(update={"step_limit": 80, "rollout_timeout_s": 60.0})
    assert config.in_set("dev") is config.in_set("train") is config


def test_a_campaign_without_sources_is_what_it_was() -> None:
    stored = campaign().model_dump(mode="json")
    assert stored["evaluation"].pop("sources") == []
    assert CampaignConfig.model_validate(stored) == campaign()
    assert counts_of("evaluation.sources") is None


@pytest.mark.parametrize(
    ("sources", "fields", "message"),
    [
        ([{"source": "a"}, {"source": "b", "name": "a.test"}], {}, "1 is called 'a.test', as"),
        ([{"source": "a", "name": "dev"}], {}, "is called 'dev', as the split 'dev' is"),
        ([{"source": "a", "name": "train"}], {}, "is called 'train', as the split 'train' is"),
        ([{"source": "own", "split": "train"}], {}, "has the tasks of the split 'train'"),
        ([{"source": "own", "split": "dev", "name": "x"}], {}, "has the tasks of the split 'dev'"),
        ([{"source": "a"}, {"source": "a", "name": "x"}], {}, "1 has the tasks of evaluation.s"),
        ([{"source": "a", "agent": "long"}], {}, "'long' has no section .agents.long.; there are:"),
        (
            [SWE],
            {"agents": AGENTS, "agent": {"override": True}},
            "does nothing with agent.override = true",
        ),
        ([{"source": "a", "name": "a b"}], {}, "name 'a b' cannot be used in ids"),
        ([{"source": "a", "split": "x/y"}], {}, "'a.x/y' cannot be used in ids: set name"),
        ([{"source": "a", "limit": 0}], {}, "greater than or equal to 1"),
        ([{"source": "a", "max_turns": 3}], {}, "max_turns"),
        ([{"source": "a", "cost_limit": 3.0}], {}, "sources.0.cost_limit needs the price"),
    ],
)
def test_what_cannot_be_told_apart_or_played_is_refused(
    sources: list[dict[str, Any]], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        campaign(*sources, **fields)


def test_a_source_has_its_own_sampling() -> None:
    sampling = {"toy": {"temperature": 0.5}}
    sources = [{"source": "a", "name": "toy"}]
    config = campaign(evaluation={"splits": [], "sources": sources, "sampling": sampling})
    assert plan_of(config).eval_splits == ["toy"]
    assert config.evaluation.temperature_of("toy", greedy=False) == 0.5
