"""Rollouts of a task with a judge: how they are configured, begun, and what was thought of them."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cluster import Cluster
from scripted import bash

from infra.db.rollouts import judgements, rollouts
from infra.db.rollouts.judgements import JudgementRecord
from infra.db.runs import events
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import RolloutId, TaskId
from mainspring.status import EventKind
from mainspring.tasks.swe_task import SweTask
from tests.chat_endpoint import Endpoint, Messages, chat_endpoint

FIX = bash("sed -i 's/a - b/a + b/' calc.py")
GOOD, BAD = r"It helps. \boxed{1}", r"It does not help. \boxed{-1}"
BOTH = ({"name": "outcome"}, {"name": "judge", "judge": "quality", "of": "turns", "weight": 0.5})


@contextmanager
def judge_endpoint() -> Iterator[Endpoint]:
    """It approves of everything."""
    with chat_endpoint() as endpoint:
        endpoint.reply = lambda messages: GOOD
        yield endpoint


def config_of(
    endpoint: Endpoint, parts: tuple[dict[str, Any], ...] = BOTH, *, together: int = 1, **judge: Any
) -> CampaignConfig:
    return CampaignConfig.model_validate(
        {
            "name": f"t-{uuid.uuid4().hex[:8]}",
            "agent": {"step_limit": 8, "max_format_errors": 2, "command_timeout_s": 60.0},
            "policy": {"model": "scripted", "max_context": 100_000, "max_new_tokens": 25_000},
            "rollout": {"turns_per_activity": together},
            "trainer": {"device": "cpu"},
            "judges": {"quality": {"url": endpoint.url, "model": "m1", "retries": 2} | judge},
            "reward": {"parts": list(parts)},
        }
    )


async def begin(cluster: Cluster, config: CampaignConfig) -> tuple[RolloutId, Any]:
    task = SweTask(
        id=TaskId(config.name),
        source="tests",
        split="train",
        issue="add subtracts",
        files={"calc.py": "def add(a, b):\n    return a - b\n"},
        tests={"hidden_test.py": "from calc import add\nassert add(2, 3) == 5\n"},
        test_command="python3 hidden_test.py",
    )
    campaign, group, [rollout] = await cluster.store(config, task)
    return rollout, await cluster.start(rollout, campaign, group)


def says(*replies: str) -> Callable[[str, int], str]:
    return lambda rollout, turn: replies[turn]


async def judged(cluster: Cluster, rollout: RolloutId, epoch: int = 0) -> list[JudgementRecord]:
    return await judgements.of_rollout(cluster.db, rollout, epoch)


async def failures_told(cluster: Cluster, rollout: RolloutId) -> dict[str, int]:
    """How often each judge of the rollout's campaign was told to have failed."""
    campaign = (await rollouts.get(cluster.db, rollout)).campaign
    found = await events.newest(cluster.db, campaign, kinds=[EventKind.JUDGE_FAILED])
    assert all("after 3 tries" in event.text for event in found)
    counts = Counter[str]()
    for event in found:  # two that are written at one moment are two rows
        counts[event.subject] += event.count
    return dict(counts)


def prompt(messages: Messages) -> str:
    [message] = messages
    return message["content"]
