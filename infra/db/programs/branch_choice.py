"""Which calls of programs are context only, and never trained.

Invariant: a closed rollout gives the same at any time: its requests, its task and the choice of
branches of its agent do not change. Calls of other agents are all trained. Used where batches are
read.
"""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import ARRAY, Text, case, cast, func, or_, select, tuple_
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import CampaignRow, GroupRow, RolloutRow, TaskRow
from infra.db.tables.program_rows import ModelRequestRow, ProgramLifeRow

_AGENT, _AGENTS = CampaignRow.config["agent"], CampaignRow.config["agents"]
_OF_SET = func.jsonb_path_query_first(
    CampaignRow.config,
    cast("$.tasks[*] ? (@.name == $label).agent", JSONPATH),
    func.jsonb_build_object("label", GroupRow.split),
    type_=JSONB,
)
"""Agent of the set that the group's task is from, for tasks that ask for none."""
_ASKED = func.coalesce(
    func.nullif(TaskRow.spec["agent_name"].astext, ""),
    _OF_SET.op("#>>", return_type=Text)(cast([], ARRAY(Text))),
)
_OF_SECTION = _AGENTS.op("->", return_type=JSONB)(_ASKED)["train"]
_TRAINED = case(
    (_AGENT["override"].astext == "true", _AGENT["train"]),
    else_=func.coalesce(_OF_SECTION, _AGENT["train"], type_=JSONB),
)
"""A JSON list of BranchKinds: of the section whose agent plays the task. One that has no section
has the choice of [agent], as it has its limits."""


async def untrained(
    connection: AsyncConnection, page: Sequence[tuple[str, int]]
) -> dict[str, frozenset[int]]:
    """Untrained calls by rollout, of these (rollout, epoch): numbers of calls on branches that the
    campaign does not train, and of calls that the last life of the program did not ask."""
    last_life = (
        select(func.max(ProgramLifeRow.life))
        .where(
            ProgramLifeRow.rollout_id == ModelRequestRow.rollout_id,
            ProgramLifeRow.epoch == ModelRequestRow.epoch,
        )
        .correlate(ModelRequestRow)
        .scalar_subquery()
    )
    rows = await connection.execute(
        select(ModelRequestRow.rollout_id, ModelRequestRow.number)
        .join(RolloutRow, RolloutRow.id == ModelRequestRow.rollout_id)
        .join(CampaignRow, CampaignRow.id == RolloutRow.campaign_id)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .join(TaskRow, TaskRow.id == RolloutRow.task_id)
        .where(
            tuple_(ModelRequestRow.rollout_id, ModelRequestRow.epoch).in_(page),
            or_(
                ModelRequestRow.life < last_life,
                ~_TRAINED.has_key(ModelRequestRow.kind),
            ),
        )
    )
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for rollout, number in rows:
        numbers[rollout].add(number)
    return {rollout: frozenset(call_numbers) for rollout, call_numbers in numbers.items()}
