"""What masked a campaign's rollouts is counted by kind, with one fault's words for each."""

from store_records import CAMPAIGN, add_group, begin_campaign, finish

from infra.db.database import Database
from infra.db.reading import endings
from infra.db.rollouts import rollouts
from mainspring.ids import RolloutId
from mainspring.status import StopReason


async def mask(db: Database, rollout: RolloutId, fault: str) -> None:
    await rollouts.finish(
        db,
        rollout,
        0,
        stop_reason=StopReason.INFRA_FAULT,
        verdict=None,
        reward=None,
        fault=fault,
        num_turns=1,
        phase_s={},
    )


async def test_the_most_frequent_kinds_of_faults_are_named(db: Database) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, 0, 9)
    told = [
        *(f"execute: SandboxLost: task {n}: it answered HTTP 500\n  look at it" for n in range(3)),
        *(f"open_sandbox: NodeFailed: task {n}: gone" for n in range(2)),
        *("a fault without an activity", "grade: TaskInvalid: no tests"),
    ]
    for rollout, fault in zip(ids, told, strict=False):
        await mask(db, rollout, fault)
    await finish(db, ids[-1], 0, 1.0)
    async with db.snapshot() as connection:
        seen = (await endings.read(connection, CAMPAIGN)).faults
    assert list(seen.items()) == [
        ("execute: SandboxLost: task 0: it answered HTTP 500\n  look at it", 3),
        ("open_sandbox: NodeFailed: task 0: gone", 2),
        ("a fault without an activity", 1),
    ]
