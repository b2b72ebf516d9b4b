"""Tells whether two campaigns' rollouts are alike: their lengths, their turns, what they solve.

    python -m tests.chaos.compare_rollouts HOME CAMPAIGN OTHER_HOME OTHER_CAMPAIGN

For campaigns of one policy, one of which had its processes killed: a system that lost long rollouts
more often than short ones would bias what is learned. Prints one JSON object with the two-sample
Kolmogorov-Smirnov test of each figure, over the rollouts that were scored. Needs both services up.
"""

import argparse
import asyncio
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats
from sqlalchemy import select

from infra.db.connect import open_database
from infra.db.tables.models import CallRow, GroupRow, RolloutRow
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId
from mainspring.status import GroupKind, RolloutPhase


@dataclass(frozen=True, slots=True)
class Figures:
    """One entry for each scored rollout."""

    num_tokens: list[int]
    """Generated, over all its replies."""
    num_turns: list[int]
    rewards: list[float]
    num_unscored: int


async def read(home: Path, campaign: CampaignId, kind: GroupKind) -> Figures:
    async with open_database(load_settings(home)) as db, db.transaction() as connection:
        of_kind = (
            (RolloutRow.campaign_id == campaign)
            & (RolloutRow.phase == RolloutPhase.DONE)
            & (GroupRow.kind == kind)
        )
        rows = (
            await connection.execute(
                select(RolloutRow.id, RolloutRow.epoch, RolloutRow.num_turns, RolloutRow.reward)
                .join(GroupRow, GroupRow.id == RolloutRow.group_id)
                .where(of_kind)
                .order_by(RolloutRow.id)
            )
        ).all()
        replies = await connection.execute(
            select(CallRow.rollout_id, CallRow.epoch, CallRow.completion_ids)
            .join(RolloutRow, RolloutRow.id == CallRow.rollout_id)
            .join(GroupRow, GroupRow.id == RolloutRow.group_id)
            .where(of_kind)
        )
        num_tokens: defaultdict[tuple[str, int], int] = defaultdict(int)
        for reply in replies:
            num_tokens[reply.rollout_id, reply.epoch] += len(reply.completion_ids)
    scored = [row for row in rows if row.reward is not None]
    return Figures(
        [num_tokens[row.id, row.epoch] for row in scored],
        [row.num_turns for row in scored],
        [row.reward for row in scored],
        len(rows) - len(scored),
    )


def compare(one: Figures, other: Figures) -> dict[str, object]:
    found: dict[str, object] = {
        "num_rollouts": [len(one.rewards), len(other.rewards)],
        "num_unscored": [one.num_unscored, other.num_unscored],
    }
    for name in ("num_tokens", "num_turns", "rewards"):
        here, there = getattr(one, name), getattr(other, name)
        statistic, p_value = stats.ks_2samp(here, there)
        found[name] = {
            "means": [float(np.mean(here)), float(np.mean(there))],
            "statistic": float(statistic),
            "p_value": float(p_value),
            "are_equal": Counter(here) == Counter(there),
        }
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("home", "campaign", "other_home", "other_campaign"):
        parser.add_argument(name, type=Path if name.endswith("home") else CampaignId)
    parser.add_argument("--kind", type=GroupKind, choices=list(GroupKind), default=GroupKind.TRAIN)
    given = parser.parse_args()
    one = await read(given.home.absolute(), given.campaign, given.kind)
    other = await read(given.other_home.absolute(), given.other_campaign, given.kind)
    print(json.dumps(compare(one, other)))


if __name__ == "__main__":
    asyncio.run(main())
