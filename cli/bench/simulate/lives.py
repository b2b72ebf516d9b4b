"""The lives of a rollout: which turns it plays on which machine, until a machine lives long enough.

Invariant: pure. A life follows from the setting, the rollout, its epoch and the life's number
alone: the ones before it are walked again. A turn that a death cuts off is played again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from cli.bench.simulate import trace
from cli.bench.simulate.setting import NO_DEADLINE_S, OnLoss, Setting
from cli.bench.simulate.trace import TraceTurn
from mainspring.ids import RolloutId, SandboxId
from mainspring.protocol.rollout import PlayInput
from mainspring.trajectories.tally import Tally


@dataclass(frozen=True, slots=True)
class Life:
    sample: str
    """Whose turns are played: another one where a try begins anew."""
    first: int
    """Turns that are played already."""
    last: int
    """Turns that are played when it ends."""
    restore_s: float
    """Replaying the commands of those before, or the part of it that the machine lived through."""
    play_s: float
    """From there to the last turn, or to the machine's death."""
    is_lost: bool

    @property
    def is_lost_restoring(self) -> bool:
        return self.is_lost and not self.play_s


@lru_cache(maxsize=20_000)
def life_of(setting: Setting, rollout: RolloutId, epoch: int, number: int) -> Life:
    """The life number `number`, from 0, of an epoch."""
    # Without its campaign's name: settings that are compared play the same rollouts.
    sample = f"{rollout.partition('/')[2]}.e{epoch}"
    machine_s = trace.lifetime_s(setting.seed, f"{sample}.s{number}", setting.lifetime_s)
    first, restore_s = 0, 0.0
    if setting.on_loss is OnLoss.RESTART:
        sample = f"{sample}.s{number}"
    turns = planned(setting, sample)
    if number and setting.on_loss is OnLoss.RESUME:
        first = life_of(setting, rollout, epoch, number - 1).last
        restore_s = sum(turn.command_s for turn in turns[:first])
    if machine_s < restore_s:
        return Life(sample, first, first, machine_s, 0.0, True)
    left_s = machine_s - restore_s
    play_s, last = 0.0, first
    for turn in turns[first:]:
        if play_s + turn.spent_s > left_s:
            return Life(sample, first, last, restore_s, left_s, True)
        play_s, last = play_s + turn.spent_s, last + 1
    return Life(sample, first, last, restore_s, play_s, False)


def slice_of(setting: Setting, life: Life, ask: PlayInput) -> Life:
    """The part of `life` that one activity plays."""
    if setting.slice_turns is None:
        return life
    first = ask.tally.num_turns
    tally = play(ask.tally, planned(setting, life.sample)[first : first + ask.num_turns])
    play_s = tally.spent_s - ask.tally.spent_s
    return Life(life.sample, first, tally.num_turns, 0.0, play_s, False)


def play(tally: Tally, turns: Iterable[TraceTurn]) -> Tally:
    """The tally after those turns, or after the one that ends it."""
    tally = tally.model_copy()
    for turn in turns:
        if tally.stop is not None:
            break
        tally.replied(turn.model_s, in_format=True)
        tally.ran(turn.command_s, submitted=False)
        tally.end_turn()
    return tally


@lru_cache(maxsize=20_000)
def planned(setting: Setting, sample: str) -> tuple[TraceTurn, ...]:
    """Turns up to the sample's own end, or to the turn in which its time is up."""
    turns = trace.turns(setting.seed, sample)
    spent_s = 0.0
    for number, turn in enumerate(turns, start=1):
        spent_s += turn.spent_s
        if spent_s > (setting.deadline_s or NO_DEADLINE_S):
            return turns[:number]
    return turns


def sandbox_of(rollout: RolloutId, epoch: int, number: int) -> SandboxId:
    return SandboxId(f"{rollout.replace('/', '.')}.e{epoch}.s{number}")


def number_of(sandbox: SandboxId) -> int:
    """The life that is played in it."""
    return int(sandbox.rpartition(".s")[2])
