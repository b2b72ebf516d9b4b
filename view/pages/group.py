"""A group: rollouts of one task side by side, with the turn where they part; and a step's batch.

Imported by `pages`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from infra.db.fence import UnknownId
from infra.db.naming import campaign_named
from infra.db.reading import rollout_rail, run_overviews, trained_steps
from infra.db.reading.rollout_pages import ListedRollout
from infra.db.reading.run_overviews import GroupLine
from infra.db.reading.trained_steps import Step
from infra.db.training import step_details
from infra.db.training import steps as stored_steps
from mainspring.ids import CampaignId, GroupId, RolloutId
from mainspring.status import CampaignKind, CampaignStatus, StepStatus
from mainspring.training.trained_rollouts import StoredGap, TrainedRollout
from view.page import Page
from view.page_request import PageRequest
from view.viewer import Viewer

COMPARED = 16
"""Rollouts whose commands are laid beside each other."""
TURNS_COMPARED = 30
NAMED = 10


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn in all rollouts of a group."""

    turn: int
    commands: Sequence[tuple[str | None, Sequence[int]]]
    """Commands with the rollouts that ran them, by sample; None: the turn has no command."""


@dataclass(frozen=True, slots=True)
class GroupPage:
    campaign: str
    group: GroupLine
    reward_mean: float | None
    reward_deviation: float | None
    rows: Sequence[TurnRow]
    compared: Sequence[int]
    """Samples that are compared."""
    parts_at: int | None
    """The first turn at which they differ."""
    trained: Mapping[RolloutId, TrainedRollout]
    """Records of what the step of its campaign did with each; empty: nothing is stored."""


async def read(viewer: Viewer, asked: PageRequest) -> GroupPage:
    async with viewer.part("the group") as db:
        record = await campaign_named(db, asked.path["name"])
        name = asked.path["group"]
        name = name if name.startswith(f"{record.id}/") else f"{record.id}/{name}"
        async with db.snapshot() as connection:
            group = await run_overviews.group(connection, GroupId(name))
            if group is None:
                names = await run_overviews.group_names(connection, record.id, NAMED)
                raise UnknownId(
                    f"no group {name} is stored",
                    remedy=f"the newest are {', '.join(names)}" if names else "there is none yet",
                )
            ids = [rollout.id for rollout in group.rollouts]
            trained = await step_details.by_rollouts(connection, CampaignId(record.id), ids)
            compared = [] if group.task is None else list(group.rollouts[:COMPARED])
            heads = {
                rollout.sample_index: [
                    call.command
                    for call in await rollout_rail.calls(connection, rollout.id, rollout.epoch)
                ]
                for rollout in compared
            }
    rewards = [each.reward for each in group.rollouts if each.reward is not None]
    rows = _rows(heads)
    return GroupPage(
        campaign=record.id,
        group=group,
        reward_mean=fmean(rewards) if rewards else None,
        reward_deviation=pstdev(rewards) if rewards else None,
        rows=rows[:TURNS_COMPARED],
        compared=sorted(heads),
        parts_at=next((row.turn for row in rows if len(row.commands) > 1), None),
        trained=trained,
    )


def _rows(heads: Mapping[int, Sequence[str | None]]) -> list[TurnRow]:
    rows = []
    for place in range(max(map(len, heads.values()), default=0)):
        ran: dict[str | None, list[int]] = {}
        for sample, commands in sorted(heads.items()):
            if place < len(commands):
                ran.setdefault(commands[place], []).append(sample)
        rows.append(TurnRow(place + 1, list(ran.items())))
    return rows


@dataclass(frozen=True, slots=True)
class StepPage:
    campaign: str
    step: int
    status: StepStatus
    policy_version_before: int
    figures: Step | None
    """None: it is not done."""
    metrics: Mapping[str, float | None]
    groups: Sequence[GroupLine]
    step_before: int | None
    """None: it is the first one that is stored."""
    step_after: int | None
    trained: Mapping[RolloutId, TrainedRollout]
    """Records of what it did with each rollout; empty: nothing is stored."""
    gaps: Sequence[StoredGap]
    """Its largest log-prob gaps, the largest first."""
    can_be_discarded: bool
    """Its campaign plays its own batches."""
    can_roll_back: bool
    """Its version is the newest, and its campaign does not run and has not finished."""

    @property
    def rollouts(self) -> list[ListedRollout]:
        return [rollout for group in self.groups for rollout in group.rollouts]

    @property
    def num_trained(self) -> int:
        return sum(each.masked_why is None for each in self.trained.values())


async def read_step(viewer: Viewer, asked: PageRequest) -> StepPage:
    number = PageRequest({}, {"step": asked.path["step"]}).number("step", 0) or 0
    async with viewer.part("the step") as db:
        record = await campaign_named(db, asked.path["name"])
        campaign = CampaignId(record.id)
        known = [each.step for each in await stored_steps.list_steps(db, campaign)]
        stored = await stored_steps.get_step(db, campaign, number)
        if stored is None:
            raise UnknownId(
                f"{campaign} has no step {number}",
                remedy=f"it has {known[0]} to {known[-1]}" if known else "it has no step yet",
            )
        async with db.snapshot() as connection:
            figures = await trained_steps.read(connection, campaign, [number])
            groups = await run_overviews.groups_of_step(connection, campaign, number)
            trained = await step_details.of_step(connection, campaign, number)
            gaps = await step_details.gaps_of_step(connection, campaign, number)
    return StepPage(
        campaign=campaign,
        step=number,
        status=stored.status,
        policy_version_before=stored.policy_version_before,
        figures=figures[0] if figures else None,
        metrics=figures[0].metrics if figures else {},
        groups=groups,
        step_before=max((each for each in known if each < number), default=None),
        step_after=min((each for each in known if each > number), default=None),
        trained=trained,
        gaps=gaps,
        can_be_discarded=record.kind is CampaignKind.TRAIN and not record.is_retrained,
        can_roll_back=record.status in (CampaignStatus.CANCELLED, CampaignStatus.FAILED)
        and record.version == number,
    )


PAGES = (
    Page("/c/{name}/groups/{group:whole}", "group.html.j2", read),
    Page("/c/{name}/steps/{step}", "step.html.j2", read_step),
)
