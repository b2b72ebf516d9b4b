"""SHA-256 of each call that a step was trained on: where two campaigns part is found by these."""

import hashlib
from collections import defaultdict

import numpy as np
from sqlalchemy import and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import CallRow, RolloutRow, StepGroupRow
from mainspring.ids import CampaignId


async def read(connection: AsyncConnection, campaign: CampaignId) -> dict[int, dict[str, str]]:
    """Digests of the trained calls by step, then by "place.rollout.call": place of the group in the
    batch, of the rollout in its group, and number of the call."""
    rows = await connection.stream(
        select(
            StepGroupRow.step,
            StepGroupRow.position,
            RolloutRow.sample_index,
            CallRow.number,
            CallRow.prompt_ids,
            CallRow.completion_ids,
            CallRow.logprobs,
        )
        .join(RolloutRow, RolloutRow.group_id == StepGroupRow.group_id)
        .join(
            CallRow,
            and_(CallRow.rollout_id == RolloutRow.id, CallRow.epoch == RolloutRow.epoch),
        )
        .where(StepGroupRow.campaign_id == campaign)
        .order_by(StepGroupRow.step, StepGroupRow.position, RolloutRow.sample_index, CallRow.number)
    )
    found: defaultdict[int, dict[str, str]] = defaultdict(dict)
    async for step, position, index, number, prompt, completion, logprobs in rows:
        hashed = hashlib.sha256(np.asarray(prompt, np.int32).tobytes())
        hashed.update(np.asarray(completion, np.int32).tobytes())
        hashed.update(np.asarray(logprobs, np.float32).tobytes())
        found[step][f"{position}.{index}.{number}"] = hashed.hexdigest()
    return found
