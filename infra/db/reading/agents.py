"""A run's rollouts by the agent that played them: how many, and how they ended.

A rollout's agent follows from its task's row and the run's configuration, so nothing is stored for
it. Nothing here is written.
"""

from dataclasses import dataclass

from sqlalchemy import case, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import GroupRow, RolloutRow, TaskRow
from infra.db.tables.rollout_ends import DONE, RESOLVED, SCORED
from mainspring.config.run import RunConfig
from mainspring.ids import CampaignId
from mainspring.status import Player


@dataclass(frozen=True, slots=True)
class AgentFigures:
    agent: str
    num_rollouts: int
    """That ended."""
    num_scored: int
    num_resolved: int
    reward_mean: float | None
    turns_mean: float


async def by_agent(
    connection: AsyncConnection, campaign: CampaignId, run: RunConfig
) -> tuple[AgentFigures, ...]:
    """Gives figures of rollouts that a policy played, by agent: a section's name or a kind; empty
    for a run whose agent plays every task."""
    if run.agent.override:
        return ()
    of_row, of_set = func.nullif(TaskRow.spec["agent_name"].astext, ""), run.agents_of_sets
    others = (case(of_set, value=GroupRow.split), run.agent.kind) if of_set else (run.agent.kind,)
    name = func.coalesce(of_row, *others).label("agent")
    rows = await connection.execute(
        select(
            name,
            func.count(),
            func.count().filter(SCORED),
            func.count().filter(RESOLVED),
            func.avg(RolloutRow.reward),
            func.avg(RolloutRow.num_turns),
        )
        .join(TaskRow, TaskRow.id == RolloutRow.task_id)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .where(RolloutRow.campaign_id == campaign, RolloutRow.player == Player.POLICY, DONE)
        .group_by(literal_column("agent"))
        .order_by(literal_column("agent"))
    )
    figures = tuple(
        AgentFigures(
            agent, num, scored, resolved, None if reward is None else float(reward), float(turns)
        )
        for agent, num, scored, resolved, reward, turns in rows
    )
    return figures if len(figures) > 1 or run.agents else ()
