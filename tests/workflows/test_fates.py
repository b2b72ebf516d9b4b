"""Every fault, raised in a real rollout: tried again, masked, or the campaign's end."""

import asyncio
import dataclasses
from collections import Counter

import pytest
from cluster import Cluster
from scripted import SUBMIT
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from cli.operations.runs import campaign_launch as launch
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.errors import DatabaseError, MainspringError
from mainspring.ids import RolloutId, TaskId
from mainspring.protocol.rollout import RolloutResult
from mainspring.status import CampaignStatus, FaultKind, StopReason, Unverified, fates
from mainspring.status.fates import RULES, Fate
from mainspring.tasks.swe_task import SweTask
from workflows.rollout import MAX_EPOCHS

AT_ONCE = [kind for kind, rule in RULES.items() if rule.is_final(1, 0.0)]
TRIED_AGAIN = [kind for kind in FaultKind if kind not in AT_ONCE]


def error_of(kind: FaultKind) -> Exception:
    if kind is FaultKind.UNEXPECTED:
        return ValueError("it broke")
    return type("Failing", (MainspringError,), {"fault": kind})("it broke")


class Replies:
    """A policy whose reply is an error, a number of times for each rollout."""

    def __init__(self, kind: FaultKind, failures: int) -> None:
        self.kind = kind
        self.failures = failures
        self.asked: Counter[str] = Counter()

    def __call__(self, rollout: str, turn: int) -> str:
        self.asked[rollout] += 1
        if self.asked[rollout] <= self.failures:
            raise error_of(self.kind)
        return SUBMIT


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules with three attempts and no time."""
    for kind in TRIED_AGAIN:
        rule = dataclasses.replace(RULES[kind], attempts=3, seconds=0.5)
        monkeypatch.setitem(fates.RULES, kind, rule)  # pyright: ignore[reportArgumentType]


async def check_masked(cluster: Cluster, kind: FaultKind, result: RolloutResult) -> None:
    row = await cluster.row(result.rollout)
    assert result.stop_reason is StopReason.INFRA_FAULT and row.reward is None
    assert row.fault is not None and f"{kind}: " in row.fault and "it broke" in row.fault
    assert RULES[kind].remedy in row.fault
    ends = RULES[kind].fate is Fate.END
    assert (result.broken is not None) == ends
    assert not ends or str(result.broken).startswith(f"{kind}: ")


@pytest.mark.parametrize("kind", [kind for kind in AT_ONCE if kind is not FaultKind.FENCED])
async def test_final_at_once(cluster: Cluster, kind: FaultKind) -> None:
    cluster.policy.say = replies = Replies(kind, failures=1000)
    rollout, result = await cluster.play()
    await check_masked(cluster, kind, result)
    # A history that cannot be repeated is begun anew before the rollout is given up.
    assert replies.asked[rollout] == (MAX_EPOCHS if kind is FaultKind.SANDBOX_DIVERGED else 1)


async def test_a_fenced_attempt_writes_nothing(cluster: Cluster) -> None:
    cluster.policy.say = Replies(FaultKind.FENCED, failures=1000)
    with pytest.raises(WorkflowFailureError):
        await cluster.play()


async def test_tried_again_and_then_well(cluster: Cluster) -> None:
    for replies, rollout, result in await play_all(cluster, failures=2):
        assert result.stop_reason is StopReason.SUBMITTED, (replies.kind, result)
        assert replies.asked[rollout] == 3, replies.kind


@pytest.mark.usefixtures("quick")
async def test_tried_again_within_its_bound_and_then_masked(cluster: Cluster) -> None:
    for replies, rollout, result in await play_all(cluster, failures=1000):
        await check_masked(cluster, replies.kind, result)
        assert replies.asked[rollout] == 3, replies.kind


async def play_all(
    cluster: Cluster, failures: int
) -> list[tuple[Replies, RolloutId, RolloutResult]]:
    """A rollout for each fault that is tried again, at once: they wait more than they work."""
    made = [await cluster.make_rollouts() for _ in TRIED_AGAIN]
    of = {
        rollouts[0]: Replies(kind, failures)
        for kind, (*_, rollouts) in zip(TRIED_AGAIN, made, strict=True)
    }
    cluster.policy.say = lambda rollout, turn: of[RolloutId(rollout)](rollout, turn)
    handles = [await cluster.start(ids[0], campaign, group) for campaign, group, ids in made]
    results = await asyncio.gather(*(each.result() for each in handles))
    return [(of[each.rollout], each.rollout, each) for each in results]


async def test_the_stores_own_calls_have_the_same_bound(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the wait between two attempts is a durable timer: time counts from the first."""
    bound = dataclasses.replace(RULES[FaultKind.DATABASE_UNREACHABLE], seconds=5.0)
    monkeypatch.setitem(fates.RULES, FaultKind.DATABASE_UNREACHABLE, bound)  # pyright: ignore[reportArgumentType]
    calls: list[str] = []

    async def away(*_: object) -> None:
        calls.append("")
        raise DatabaseError("it is away")

    monkeypatch.setattr(rollouts, "claim", away)
    with pytest.raises(WorkflowFailureError) as failed:
        await cluster.play()
    cause = failed.value.cause
    while not isinstance(cause, ApplicationError):
        assert cause is not None
        cause = cause.__cause__
    assert cause.type == FaultKind.DATABASE_UNREACHABLE
    assert len(calls) == 5


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if RULES[kind].fate is Fate.END])
async def test_the_campaign_ends_with_the_sentence(cluster: Cluster, kind: FaultKind) -> None:
    cluster.policy.say = replies = Replies(kind, failures=1000)
    name = f"ends-{kind.lower()}"
    await tasks.put_tasks(
        cluster.db,
        [
            SweTask(
                id=TaskId(f"{name}-{number}"),
                source=name,
                split="train",
                issue="nothing is wrong",
                files={"a.py": ""},
                test_command="true",
            )
            for number in range(3)
        ],
    )
    config = EvaluationConfig(
        name=name,
        tasks=TasksConfig(source=name, unverified=Unverified.USE),
        policy=PolicyConfig(model="scripted"),
        split="train",
    )
    campaign = await launch.create(cluster.db, config)
    handle = await launch.start(cluster.client, cluster.db, campaign)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    record = await campaigns.get(cluster.db, campaign)
    assert record.status is CampaignStatus.FAILED
    assert record.error is not None and record.error.endswith(f"it broke\n  {RULES[kind].remedy}")
    # Correct what it names and start it again: the same rollouts are played, and end.
    replies.failures = 0
    await (await launch.start(cluster.client, cluster.db, campaign)).result()
    assert len(replies.asked) == 3
