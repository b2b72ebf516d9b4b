"""The reproducible schedule: whatever the order of events, the same groups make the same steps."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from mainspring.algorithms.schedule import MAX_REPEATS, Batches, Drawn
from mainspring.status import GroupStatus

NUM_STEPS, PER_STEP = 5, 3
STRIDE = NUM_STEPS * PER_STEP
FLAT_DRAWS = {1, 7, 7 + NUM_STEPS * PER_STEP, 14}


def outcome(draw: int) -> GroupStatus:
    return GroupStatus.FLAT if draw in FLAT_DRAWS else GroupStatus.READY


class Campaign:
    """The rules of workflow and store, with time replaced by a random number generator."""

    def __init__(self, batches: Batches, rng: random.Random) -> None:
        self.batches, self.rng = batches, rng
        self.groups: list[Drawn] = []
        self.versions: list[int] = []
        """Policy version of each group, as it was served when the group was admitted."""
        self.newest = self.published = 0
        self.steps: list[list[int]] = []

    def do_something(self, end: Callable[[int], GroupStatus]) -> None:
        moves = [self.publish, self.train, self.admit, lambda: self.end_one(end)]
        self.rng.choice(moves)()

    def publish(self) -> None:
        self.published = self.batches.servable(self.newest, self.groups)

    def admit(self) -> None:
        due = self.batches.due(self.groups, first_step=self.newest + 1, published=self.published)
        self.groups += [Drawn(draw, GroupStatus.RUNNING) for draw in due]
        self.versions += [self.published] * len(due)

    def end_one(self, end: Callable[[int], GroupStatus]) -> None:
        running = [n for n, g in enumerate(self.groups) if g.status is GroupStatus.RUNNING]
        if running:
            n = self.rng.choice(running)
            self.groups[n] = Drawn(self.groups[n].draw, end(self.groups[n].draw))

    def train(self) -> None:
        if self.published != self.newest or self.newest == self.batches.num_steps:
            return
        places = self.batches.places(self.newest + 1)
        ready = {
            self.batches.place_of(g.draw): g.draw
            for g in self.groups
            if g.status is GroupStatus.READY
        }
        if all(place in ready for place in places):
            self.steps.append([ready[place] for place in places])
            self.newest += 1


def played(staleness: int, seed: int, end: Callable[[int], GroupStatus] = outcome) -> Campaign:
    campaign = Campaign(Batches(NUM_STEPS, PER_STEP, staleness), random.Random(seed))
    for _ in range(20_000):
        if campaign.newest == NUM_STEPS:
            return campaign
        campaign.do_something(end)
    raise AssertionError(f"stuck at version {campaign.newest}: {campaign.groups}")


@pytest.mark.parametrize("staleness", [0, 1])
def test_steps_do_not_depend_on_the_order_of_events(staleness: int) -> None:
    runs = [played(staleness, seed) for seed in range(40)]
    assert len({str(run.steps) for run in runs}) == 1
    [step, *_] = runs[0].steps
    assert step == [0, 1 + NUM_STEPS * PER_STEP, 2]
    for run in runs:
        for group, version in zip(run.groups, run.versions, strict=True):
            step = run.batches.place_of(group.draw) // PER_STEP + 1
            assert version == run.batches.version_of(step) == max(0, step - 1 - staleness)


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_campaign_may_be_prolonged_at_any_moment(staleness: int) -> None:
    def runs(seed: int) -> Campaign:
        rng = random.Random(seed)
        campaign = Campaign(Batches(NUM_STEPS, PER_STEP, staleness), rng)
        at = rng.randrange(1, NUM_STEPS + 1)
        for _ in range(40_000):
            lengths = campaign.batches.lengths
            if campaign.newest >= at and not lengths:
                longer = (NUM_STEPS, NUM_STEPS + 2)
                campaign.batches = replace(campaign.batches, num_steps=longer[-1], lengths=longer)
            elif campaign.newest >= NUM_STEPS + 1 and len(lengths) == 2:
                longer = (*lengths, NUM_STEPS + 5)
                campaign.batches = replace(campaign.batches, num_steps=longer[-1], lengths=longer)
            if campaign.newest == NUM_STEPS + 5:
                return campaign
            campaign.do_something(outcome)
        raise AssertionError(f"stuck at version {campaign.newest}: {campaign.groups}")

    found = [runs(seed) for seed in range(40)]
    assert len({str(run.steps) for run in found}) == 1
    assert found[0].steps[:NUM_STEPS] == played(staleness, 0).steps, "what was played stays"
    draws = [draw for step in found[0].steps for draw in step]
    assert len(set(draws)) == len(draws)
    for run in found:
        for group, version in zip(run.groups, run.versions, strict=True):
            step = run.batches.place_of(group.draw) // PER_STEP + 1
            assert version == run.batches.version_of(step)


def test_rollouts_overlap_with_training_at_staleness_1() -> None:
    batches = Batches(NUM_STEPS, PER_STEP, 1)
    assert batches.due([], first_step=1, published=0) == [0, 1, 2, 3, 4, 5]
    first = [Drawn(draw, GroupStatus.CONSUMED) for draw in (0, 1, 2)]
    second = [Drawn(draw, GroupStatus.READY) for draw in (3, 4)]
    # Version 1 is made, and the groups of step 2 still play under version 0.
    assert batches.servable(1, first + second) == 0
    assert batches.due(first + second, first_step=2, published=0) == [5]
    second.append(Drawn(5, GroupStatus.READY))
    assert batches.servable(1, first + second) == 1
    assert batches.due(first + second, first_step=2, published=1) == [6, 7, 8]


@pytest.mark.parametrize("staleness", [0, 1])
def test_cancelled_and_masked_groups_are_played_again_as_they_were(staleness: int) -> None:
    undisturbed = played(staleness, 0)

    def disturbed(seed: int) -> Campaign:
        rng = random.Random(seed)
        masked: dict[int, int] = {}

        def end(draw: int) -> GroupStatus:
            if rng.random() < 0.2:
                return GroupStatus.CANCELLED
            if rng.random() < 0.3 and masked.get(draw, 0) < MAX_REPEATS:
                masked[draw] = masked.get(draw, 0) + 1
                return GroupStatus.MASKED
            return outcome(draw)

        return played(staleness, seed, end)

    for seed in range(20):
        assert disturbed(seed).steps == undisturbed.steps


def test_what_stays_masked_or_is_discarded_gives_way() -> None:
    batches = Batches(NUM_STEPS, PER_STEP, 0)
    masked = Drawn(0, GroupStatus.MASKED)
    assert batches.next_draw(0, [masked] * MAX_REPEATS) == 0
    assert batches.next_draw(0, [masked] * (MAX_REPEATS + 1)) == STRIDE
    discarded = Drawn(0, GroupStatus.MASKED, is_discarded=True)
    assert batches.next_draw(0, [discarded]) == STRIDE
    after = [discarded, Drawn(STRIDE, GroupStatus.FLAT)]
    assert batches.next_draw(0, after) == 2 * STRIDE


def test_the_last_version_waits_for_nothing() -> None:
    batches = Batches(NUM_STEPS, PER_STEP, 1)
    used = [Drawn(draw, GroupStatus.CONSUMED) for draw in range(STRIDE)]
    assert batches.servable(NUM_STEPS, used) == NUM_STEPS
    assert batches.due(used, first_step=NUM_STEPS + 1, published=NUM_STEPS) == []
