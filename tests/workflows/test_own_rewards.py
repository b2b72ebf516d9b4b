"""Reward functions of one's own: what they see, judges that they ask, and what they do wrong."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import Cluster
from judged_rollouts import BAD, GOOD, begin, config_of, judge_endpoint, judged, prompt, says
from scripted import SUBMIT, bash

from mainspring.config.agents.judges import QuestionScope
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.pairs import warnings
from mainspring.rewards.scoring import Outcome, RewardJudges
from mainspring.status import FaultKind, StopReason, Verdict
from tests.chat_endpoint import Endpoint, Messages

FIX = bash("sed -i 's/a - b/a + b/' calc.py && cat calc.py")
SEEN: list[Outcome] = []
CALLED: list[str] = []
ENDED = threading.Event()


async def thoughtful(outcome: Outcome, *, base: float, judges: RewardJudges) -> float:
    """Asks about the first turn and about the patch."""
    SEEN.append(outcome)
    assert outcome.record is not None
    [first, second] = await asyncio.gather(
        judges.ask("quality", f"TURN {outcome.record.turns[0].reply}"),
        judges.ask("quality", f"PATCH {outcome.record.patch}"),
    )
    assert first is not None and second is not None
    return base + first + 10 * second


async def in_turn(outcome: Outcome, *, judges: RewardJudges) -> float:
    CALLED.append("again")
    scores = [await judges.ask("quality", name) for name in ("FIRST", "SECOND")]
    return sum(-100.0 if score is None else score for score in scores)


async def hopeful(outcome: Outcome, *, judges: RewardJudges) -> float:
    return await judges.ask("nobody", "are you there?") or 0.0


async def slow(outcome: Outcome) -> float:
    try:
        await asyncio.sleep(60)
    finally:
        ENDED.set()
    return 1.0


def slower(outcome: Outcome) -> float:
    time.sleep(3)
    return 1.0


async def odd(outcome: Outcome) -> str:
    return "good"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    SEEN.clear()
    CALLED.clear()
    ENDED.clear()
    with judge_endpoint() as endpoint:
        yield endpoint


def config(endpoint: Endpoint, name: str, *, timeout_s: float = 10.0, **fields: Any) -> Any:
    options = fields.pop("options", {})
    part = {"name": f"{__name__}:{name}", "options": options}
    found = config_of(endpoint, (part,), votes=fields.pop("votes", 1), **fields)
    raw = found.model_dump(mode="json", exclude_unset=True)
    raw["reward"]["timeout_s"] = timeout_s
    return CampaignConfig.model_validate(raw)


async def test_it_sees_the_whole_record_and_asks_judges(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    cluster.policy.say = says(FIX, SUBMIT)
    endpoint.reply = lambda messages: BAD if "TURN" in prompt(messages) else GOOD
    wanted = config(endpoint, "thoughtful", options={"base": 0.5}, votes=3)
    assert not [each for each in warnings(wanted) if "judges.quality" in each]
    rollout, handle = await begin(cluster, wanted)
    result = await handle.result()
    assert (result.stop_reason, result.verdict) == (StopReason.SUBMITTED, Verdict.RESOLVED)
    assert result.reward == 0.5 - 1 + 10
    [outcome] = SEEN
    record = outcome.record
    assert (
        record is not None
        and record.issue == "add subtracts"
        and "+    return a + b" in record.patch
    )
    [first, last] = record.turns
    [command] = first.commands
    assert "sed -i" in command.command and "return a + b" in command.output
    assert command.returncode == 0 and (first.number, last.number) == (1, 2)
    assert outcome.verdict is Verdict.RESOLVED
    found = await judged(cluster, rollout)
    assert [(each.judgement.of, each.judgement.call) for each in found] == [
        (QuestionScope.REWARD, 0),
        (QuestionScope.REWARD, 1),
    ]
    assert [len(each.votes) for each in found] == [3, 3] and len(endpoint.asked) == 6
    row = await cluster.row(rollout)
    assert row.reward_parts == {f"{__name__}:thoughtful": 9.5}


async def test_a_judge_that_fails_is_asked_again_and_what_is_stored_is_not(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    cluster.policy.say = says(SUBMIT)

    def reply(messages: Messages) -> str:
        if len(CALLED) < 2:  # what comes next
            endpoint.script.append((500, {}, "oh"))
        return GOOD

    endpoint.reply = reply
    _, handle = await begin(cluster, config(endpoint, "in_turn"))
    assert (await handle.result()).reward == 2.0
    asked = [prompt(body["messages"]) for body in endpoint.asked]
    assert asked == ["FIRST", "SECOND", "SECOND"]
    assert len(CALLED) == 2


async def test_a_judge_that_fails_for_good_is_missing(cluster: Cluster, endpoint: Endpoint) -> None:
    cluster.policy.say = says(SUBMIT)
    endpoint.script.extend([(400, {}, {"error": "no"})] * 2)
    rollout, handle = await begin(cluster, config(endpoint, "in_turn"))
    assert (await handle.result()).reward == -200.0
    found = await judged(cluster, rollout)
    assert all(each.judgement.missing for each in found) and len(found) == 2


async def test_the_time_of_judges_does_not_count(cluster: Cluster, endpoint: Endpoint) -> None:
    cluster.policy.say = says(SUBMIT)

    def reply(messages: Messages) -> str:
        time.sleep(1.5)
        return GOOD

    endpoint.reply = reply
    _, handle = await begin(cluster, config(endpoint, "in_turn", timeout_s=1.0))
    assert (await handle.result()).reward == 2.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("slow", "took longer than 1 s"),
        ("slower", "took longer than 1 s"),
        ("odd", "is 'good', expected a finite number"),
        (
            "hopeful",
            "asks judge 'nobody', which has no section [judges.nobody]; there are: quality",
        ),
    ],
)
async def test_what_it_does_wrong_ends_the_campaign(
    cluster: Cluster, endpoint: Endpoint, name: str, message: str
) -> None:
    cluster.policy.say = says(SUBMIT)
    rollout, handle = await begin(cluster, config(endpoint, name, timeout_s=1.0))
    result = await handle.result()
    assert result.stop_reason is StopReason.INFRA_FAULT and result.reward is None
    assert result.broken is not None and message in str(result.broken)
    row = await cluster.row(rollout)
    assert row.fault is not None and f"score: {FaultKind.REWARD_BROKEN.value}: " in row.fault
    if name == "slow":
        assert await asyncio.to_thread(ENDED.wait, 5)
