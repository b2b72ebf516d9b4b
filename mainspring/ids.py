"""Deterministic ids, and the Temporal queue names made from them.

Invariant: an id is a function of what it names, so that starting twice names the same thing.
Attempts are Temporal runs and epochs, never part of an id.
"""

import re
from datetime import datetime
from typing import NewType

from mainspring.errors import UsageError

CampaignId = NewType("CampaignId", str)
TaskId = NewType("TaskId", str)
GroupId = NewType("GroupId", str)
RolloutId = NewType("RolloutId", str)
SandboxId = NewType("SandboxId", str)
NodeId = NewType("NodeId", str)

ROLLOUT_QUEUE = "rollout"
SANDBOX_QUEUE = "sandbox"
GRADE_QUEUE = "grade"
JUDGE_QUEUE = "judge"

_MAX_NAME = 48
_CAMPAIGN_NAME = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{_MAX_NAME - 1}}}")
_NAME_RULE = "use 1 to 48 of a-z, 0-9 and '-', starting with a letter or digit"


def campaign_id(name: str) -> CampaignId:
    """Check that `name` can be a campaign's id. Raises UsageError."""
    if not _CAMPAIGN_NAME.fullmatch(name):
        raise UsageError(
            f"campaign name {name!r} cannot be used as an id",
            remedy=_NAME_RULE,
        )
    return CampaignId(name)


def label_name(text: str) -> str:
    """Check that `text` can be the name of a label. Raises UsageError."""
    if not _CAMPAIGN_NAME.fullmatch(text):
        raise UsageError(f"{text!r} cannot be the name of a label", remedy=_NAME_RULE)
    return text


def campaign_id_at(kind: str, what: str, at: datetime) -> CampaignId:
    """A name for a run of `what` begun at `at`."""
    ending = f"-{at:%Y%m%d-%H%M%S}"
    words = re.sub(r"[^a-z0-9]+", "-", f"{kind}-{what}".lower()).strip("-")
    return CampaignId(words[: _MAX_NAME - len(ending)].rstrip("-") + ending)


def group_id(campaign: CampaignId, index: int) -> GroupId:
    """The `index`-th training group of a campaign."""
    return GroupId(f"{campaign}/g{index:06d}")


def eval_group_id(campaign: CampaignId, split: str, sampling: str, version: int) -> GroupId:
    """All rollouts of one evaluation: one policy version on one split, one way of sampling."""
    return GroupId(f"{campaign}/eval-v{version:04d}-{split}-{sampling}")


def run_group_id(campaign: CampaignId, index: int) -> GroupId:
    """The `index`-th part of an evaluation, a verification or a regrade."""
    return GroupId(f"{campaign}/r{index:06d}")


def rollout_id(group: GroupId, index: int) -> RolloutId:
    return RolloutId(f"{group}/{index:03d}")


def campaign_workflow(campaign: CampaignId) -> str:
    return f"campaign/{campaign}"


def group_workflow(group: GroupId) -> str:
    return f"group/{group}"


def rollout_workflow(rollout: RolloutId) -> str:
    return f"rollout/{rollout}"


def evaluation_workflow(group: GroupId) -> str:
    return f"evaluation/{group}"


def node_queue(node: NodeId) -> str:
    """The queue only this node polls: exec, diff and close go where the sandbox is, and an open
    where its image is."""
    return f"sandbox/{node}"


def worker_queue(identity: str) -> str:
    """The queue only the rollout worker of this Temporal identity polls."""
    return f"worker/{identity}"


def waiting_trainer_queue(campaign: CampaignId) -> str:
    """The queue of a trainer whose campaign is not stored yet."""
    return f"waiting-trainer/{campaign}"


def trainer_queue(campaign: CampaignId) -> str:
    return f"trainer/{campaign}"


def command_id(rollout: RolloutId, epoch: int, call: int, index: int) -> str:
    """Names one command permanently: a second attempt finds the first by it."""
    first = f"{rollout.replace('/', '.')}.e{epoch}.t{call}"
    return f"{first}.{index}" if index else first


def program_id(rollout: RolloutId, epoch: int, life: int) -> str:
    """Names the command that is a program's life, as `command_id`."""
    return f"{rollout.replace('/', '.')}.e{epoch}.p{life}"


def session_id(rollout: RolloutId, epoch: int, life: int) -> str:
    """Names a session that an agent outside takes: one life of a rollout."""
    return f"{rollout.replace('/', '.')}.e{epoch}.l{life}"
