"""Tells what became of the calls of a campaign that a program plays, whatever was killed under it.

    python -m tests.chaos.check_programs write campaign.toml
    python -m tests.chaos.fault_schedule --home DIR --campaign own-program -- train campaign.toml
    python -m tests.chaos.check_programs read DIR own-program

`write` takes the example's campaign and has its program print each reply that it sees. `read`, with
both services up, prints one JSON object. These must be 0: `num_unfinished`, and all figures that
have a fault in their name.
"""

import argparse
import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from sqlalchemy import Select, func, select

from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.programs import model_requests, program_lives
from infra.db.rollouts import turns
from infra.db.tables.models import CallRow, GroupRow, RolloutRow
from infra.db.tables.program_rows import ModelRequestRow
from infra.db.training.batches import BatchRollout, load_groups
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId, GroupId, RolloutId
from mainspring.programs.record import RequestState
from mainspring.status import RolloutPhase
from mainspring.trajectories.samples import samples_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-program" / "campaign.toml"
SEEN = "SEEN "
_ASKS = "    reply = complete(messages)\n"
_PRINTS = f'    print("{SEEN}" + json.dumps(reply), flush=True)\n'


def write(file: Path, num_steps: int | None = None) -> None:
    text = EXAMPLE.read_text()
    if num_steps is not None:
        text, found = re.subn(r"(?m)^num_steps = \d+$", f"num_steps = {num_steps}", text)
        assert found == 1, f"{EXAMPLE} has changed: num_steps is not there once"
    assert text.count(_ASKS) == 1, f"{EXAMPLE} has changed: {_ASKS!r} is not there once"
    file.write_text(text.replace(_ASKS, _ASKS + _PRINTS))


async def read(home: Path, campaign: CampaignId) -> dict[str, object]:
    found: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    async with open_database(load_settings(home)) as db:
        async with db.transaction() as connection:
            rows = await connection.execute(
                select(RolloutRow.id, RolloutRow.epoch, RolloutRow.phase, RolloutRow.stop_reason)
                .where(RolloutRow.campaign_id == campaign)
                .order_by(RolloutRow.id)
            )
            rollouts = rows.all()
            groups = await connection.scalars(
                select(GroupRow.id).where(GroupRow.campaign_id == campaign)
            )
            twice = await connection.scalar(
                select(func.count()).select_from(_asked_twice(campaign).subquery())
            )
        found["fault_prompts_answered_twice"] = twice or 0
        for row in rollouts:
            reasons[str(row.stop_reason)] += 1
            found["num_rollouts"] += 1
            found["num_unfinished"] += row.phase is not RolloutPhase.DONE
            await _add_rollout(db, RolloutId(row.id), row.epoch, found)
        for group in groups:
            await _add_samples(db, GroupId(group), found)
    return {**found, "stop_reasons": reasons}


async def _add_rollout(db: Database, rollout: RolloutId, epoch: int, found: Counter[str]) -> None:
    """What its program saw, against what is stored: its calls are one line."""
    calls, _ = await turns.history(db, rollout, epoch)
    stored = [call.text for call in calls]
    lives = await program_lives.of_rollout(db, rollout, epoch)
    requests = await model_requests.history(db, rollout, epoch)
    answered = [each for each in requests if each.state is RequestState.STORED]
    found["num_calls"] += len(calls)
    found["num_tokens"] += sum(len(call.completion_ids) for call in calls)
    found["num_lives"] += len(lives)
    found["num_replayed"] += sum(each.life > each.first_life for each in answered)
    found["fault_calls_without_request"] += len(calls) - len(answered)
    found["num_calls_of_other_branches"] += sum(
        call.parent != (call.number - 1 if call.number else None) for call in calls
    )
    for life in lives:
        lines = (life.output or "").splitlines()
        seen = [json.loads(line.removeprefix(SEEN)) for line in lines if line.startswith(SEEN)]
        found["fault_replies_seen_and_not_stored"] += sum(
            place >= len(stored) or stored[place] != reply for place, reply in enumerate(seen)
        )


async def _add_samples(db: Database, group: GroupId, found: Counter[str]) -> None:
    """What of its tokens is trained never or twice."""
    for loaded in await load_groups(db, [group]):
        for rollout in loaded.rollouts:
            found["fault_tokens_trained_amiss"] += num_trained_amiss(rollout)
            found["num_calls_not_trained"] += len(rollout.untrained)


def num_trained_amiss(rollout: BatchRollout) -> int:
    samples = samples_of(rollout.id, rollout.calls, trained=rollout.trained)
    is_trained = rollout.trained
    sampled = sum(
        len(call.completion_ids)
        for call in rollout.calls
        if is_trained is None or call.number in is_trained
    )
    return abs(sum(sample.num_action_tokens for sample in samples) - sampled)


def _asked_twice(campaign: CampaignId) -> Select[Any]:
    """Prompts of one epoch that have two replies, though the program asks each once."""
    row = ModelRequestRow
    return (
        select(row.key)
        .join(RolloutRow, RolloutRow.id == row.rollout_id)
        .join(
            CallRow,
            (CallRow.rollout_id == row.rollout_id)
            & (CallRow.epoch == row.epoch)
            & (CallRow.number == row.number),
        )
        .where(RolloutRow.campaign_id == campaign)
        .group_by(row.rollout_id, row.epoch, row.key)
        .having(func.count() > 1)
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("file", type=Path)
    writing.add_argument("--num-steps", type=int, help="Number of steps; as the example without.")
    reading = commands.add_parser("read")
    reading.add_argument("home", type=Path)
    reading.add_argument("campaign", type=CampaignId)
    given = parser.parse_args()
    if given.command == "write":
        write(given.file, given.num_steps)
    else:
        print(json.dumps(await read(given.home.absolute(), given.campaign)))


if __name__ == "__main__":
    asyncio.run(main())
