"""The task, the campaign and the rollouts that a bench with no-op parts plays.

Invariant: each rollout takes exactly `num_turns` turns, and leaves no patch unless it runs COMMAND
in a real sandbox, so that a bench can tell whether its rollouts ended as expected. Imported by the
benches of turns and of scale.
"""

from collections.abc import Sequence

from infra.db.database import Database
from infra.db.rollouts import groups
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.rollout import RolloutConfig
from mainspring.ids import CampaignId, GroupId, RolloutId, TaskId, group_id, rollout_id
from mainspring.status import GroupKind
from mainspring.tasks.swe_task import SweTask

MAX_CONTEXT = 32_768
COMMAND = "echo 'x = 1' >> a.py; seq 500"
"""In real sandboxes each turn changes a file, and prints what a small test prints."""
TASK = SweTask(
    id=TaskId("bench"),
    source="bench",
    split="train",
    issue="nothing is wrong",
    files={"a.py": ""},
    test_command="true",
)


def no_op_config(
    name: str, num_turns: int, turns_per_activity: int, num_tokens: int = 0
) -> CampaignConfig:
    """A campaign whose step limit is the bench's number of turns, with room for `num_tokens`."""
    return CampaignConfig(
        name=name,
        agent=AgentConfig(step_limit=num_turns),
        rollout=RolloutConfig(turns_per_activity=turns_per_activity),
        policy=PolicyConfig(model="none", max_context=MAX_CONTEXT + num_tokens),
    )


async def put_rollouts(
    db: Database, campaign: CampaignId, index: int, num_rollouts: int
) -> tuple[GroupId, Sequence[RolloutId]]:
    """Store the campaign's group of this number with its rollouts."""
    group = group_id(campaign, index)
    ids = [rollout_id(group, n) for n in range(num_rollouts)]
    await groups.create_group(
        db,
        group,
        campaign,
        GroupKind.TRAIN,
        policy_version=0,
        split=TASK.split,
        index=index,
        task=TASK.id,
        rollouts=[groups.NewRollout(rollout, TASK.id, n, 1.0) for n, rollout in enumerate(ids)],
    )
    return group, ids
