"""The figures of one simulated campaign, from what its fleet noted and what the store holds.

Invariants: rates are measured from the end of the first step on, as the first rollouts of a
campaign wait for nothing; what is trained is what the store has in its steps. Shares are of 1.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cli.bench.simulate.journal import Journal, PlayedLife
from cli.bench.simulate.lives import planned
from cli.bench.simulate.setting import Setting
from infra.db.database import Database
from infra.db.rollouts import groups, rollouts
from infra.db.rollouts.rollouts import RolloutRecord
from infra.db.training import steps
from mainspring.ids import CampaignId, GroupId
from mainspring.status import GroupStatus, StopReason

_CUT = (StopReason.WALL_TIME, StopReason.STRAGGLER)
_OPEN = (GroupStatus.RUNNING, GroupStatus.READY)


@dataclass(frozen=True, slots=True)
class Figures:
    setting: Setting
    error: str | None
    """Why the campaign failed; None: all steps are done."""
    steps_done: int
    steps_per_h: float | None
    """None with fewer than two steps."""
    trainer_idle: float | None
    """Share of the time from the first step's end to the last one's end."""
    staleness: Mapping[int, float]
    """Share of the trained turns by versions between their sampling and the step's begin."""
    rollouts_per_step: float | None
    """Rollouts that were begun."""
    discarded_rollouts: int
    """Ended, and in no step: masked, or of a masked group."""
    discarded_groups: int
    discarded_turns: float | None
    """Share of the turns that were played of rollouts that ended, and are in no step."""
    cut_rollouts: float | None
    """Share of the trained rollouts that the deadline ended, or that were the last of their
    group."""
    turns_mean: float | None
    """Mean turns of the trained rollouts: one below the trace's is a bias to short ones."""
    wall_simulated_s: float
    wall_real_s: float

    def as_dict(self) -> dict[str, Any]:
        row = asdict(self)
        return {**self.setting.as_dict(), **{k: v for k, v in row.items() if k != "setting"}}


async def measured(
    db: Database,
    campaign: CampaignId,
    setting: Setting,
    journal: Journal,
    error: str | None,
    real_s: float,
) -> Figures:
    step_of: dict[GroupId, int] = {
        group: step
        for step in journal.trained
        for group in await steps.step_groups(db, campaign, step)
    }
    all_groups = await groups.list_groups(db, campaign)
    open_groups = {group.id for group in all_groups if group.status in _OPEN}
    rows = {row.id: row for row in await rollouts.list_rollouts(db, campaign=campaign)}
    trained = [r for r in rows.values() if r.group in step_of and r.reward is not None]
    ended = [r for r in rows.values() if r.group not in open_groups]
    is_trained = {row.id for row in trained}
    stale = Counter(
        step_of[row.group] - 1 - journal.version_at(at_s)
        for row in trained
        for at_s in _sampled_at_s(setting, _lives(journal, row))
    )
    kept_turns = sum(row.num_turns for row in trained)
    played_turns = sum(
        played.life.last - played.life.first
        for rollout, lives in journal.played.items()
        if rows[rollout].group not in open_groups
        for played in lives.values()
    )
    num_steps = len(journal.trained)
    num_begun = len(journal.played)
    return Figures(
        setting=setting,
        error=error,
        steps_done=num_steps,
        steps_per_h=_steps_per_h(journal),
        trainer_idle=_idle(journal, setting),
        staleness={v: n / stale.total() for v, n in sorted(stale.items())},
        rollouts_per_step=num_begun / num_steps if num_steps else None,
        discarded_rollouts=sum(row.id not in is_trained for row in ended),
        discarded_groups=sum(group.status is GroupStatus.MASKED for group in all_groups),
        discarded_turns=1 - kept_turns / played_turns if played_turns else None,
        cut_rollouts=_mean([row.stop_reason in _CUT for row in trained]),
        turns_mean=_mean([row.num_turns for row in trained]),
        wall_simulated_s=journal.simulated_s,
        wall_real_s=real_s,
    )


def _lives(journal: Journal, row: RolloutRecord) -> list[PlayedLife]:
    """Lives of the try that was graded."""
    played = journal.lives(row.id, row.epoch)
    return [life for life in played if life.life.sample == played[-1].life.sample]


def _sampled_at_s(setting: Setting, lives: list[PlayedLife]) -> Iterator[float]:
    """When each turn's reply began."""
    for played in lives:
        at_s = played.began_s
        for turn in planned(setting, played.life.sample)[played.life.first : played.life.last]:
            yield at_s
            at_s += turn.spent_s


def _steps_per_h(journal: Journal) -> float | None:
    ends_s = sorted(journal.trained.values())
    return 3600.0 * (len(ends_s) - 1) / (ends_s[-1] - ends_s[0]) if len(ends_s) > 1 else None


def _idle(journal: Journal, setting: Setting) -> float | None:
    ends_s = sorted(journal.trained.values())
    if len(ends_s) < 2:
        return None
    return 1 - (len(ends_s) - 1) * setting.train_s / (ends_s[-1] - ends_s[0])


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None
