"""Simulated time: what is drawn repeats, and a small campaign's figures are those of its trace."""

import math
from dataclasses import replace
from itertools import pairwise
from statistics import mean

import pytest
from typer.testing import CliRunner

from cli.bench.simulate import trace
from cli.bench.simulate.figures import Figures
from cli.bench.simulate.grid import gain
from cli.bench.simulate.lives import life_of, sandbox_of
from cli.bench.simulate.passing_time import duration_s
from cli.bench.simulate.playing import play
from cli.bench.simulate.setting import (
    GRADE_S,
    NOTICED_S,
    OPEN_S,
    PUBLISH_S,
    OnLoss,
    Setting,
)
from cli.main import app
from infra.db.database import Database
from infra.temporal.skipping_server import program
from mainspring.errors import TemporalError
from mainspring.ids import RolloutId
from mainspring.protocol.activities import PLAY_TURNS, RESTORE_SANDBOX
from mainspring.protocol.rollout import SandboxInput
from workflows.sandbox_life import MAX_LIVES

ROLLOUT = RolloutId("campaign/g000000/000")
SMALL = Setting(num_steps=2, groups_per_step=2, group_size=2, train_s=900.0)
ONE_STEP = Setting(num_steps=1, groups_per_step=1, group_size=2)


def _server_or_skip() -> None:
    try:
        program()
    except TemporalError as error:
        pytest.skip(f"no time-skipping server here: {error.message}")


def test_the_trace_has_the_published_means() -> None:
    rollouts = [trace.turns(0, str(n)) for n in range(2000)]
    assert mean(map(len, rollouts)) == pytest.approx(trace.MEAN_TURNS, rel=0.05)
    turns = [turn for rollout in rollouts[:200] for turn in rollout]
    assert mean(turn.model_s for turn in turns) == pytest.approx(trace.MEAN_MODEL_S, rel=0.05)
    assert mean(turn.command_s for turn in turns) == pytest.approx(trace.MEAN_COMMAND_S, rel=0.05)
    assert max(map(len, rollouts)) == trace.MAX_TURNS


def test_a_draw_depends_on_its_seed_and_name_alone() -> None:
    first = trace.turns(7, "a")
    trace.turns(7, "b")
    trace.turns.cache_clear()
    assert trace.turns(7, "a") == first
    assert trace.turns(8, "a") != first
    assert trace.lifetime_s(7, "m", None) == math.inf


def test_rollouts_of_campaigns_that_are_compared_are_the_same() -> None:
    other = RolloutId("another/g000000/000")
    assert life_of(SMALL, ROLLOUT, 0, 0) == life_of(SMALL, other, 0, 0)


@pytest.mark.parametrize("on_loss", list(OnLoss))
def test_lives_follow_each_other(on_loss: OnLoss) -> None:
    setting = replace(SMALL, lifetime_s=600.0, on_loss=on_loss)
    lives = [life_of(setting, ROLLOUT, 0, n) for n in range(6)]
    assert lives[0].is_lost
    for before, after in pairwise(lives):
        resumed = on_loss is OnLoss.RESUME
        assert after.first == (before.last if resumed else 0)
        assert (after.sample == before.sample) is (on_loss is not OnLoss.RESTART)
    life = lives[0]
    ask = SandboxInput(rollout=ROLLOUT, epoch=0, sandbox=sandbox_of(ROLLOUT, 0, 0))
    assert duration_s(setting, PLAY_TURNS.name, ask) == life.play_s + NOTICED_S
    assert duration_s(setting, RESTORE_SANDBOX.name, ask) == life.restore_s == 0.0


async def _played(db: Database, name: str, setting: Setting) -> tuple[Figures, list[int]]:
    _server_or_skip()
    steps: list[int] = []
    return await play(db, name, setting, steps.append), steps


async def test_a_campaign_takes_as_long_as_its_trace(db: Database) -> None:
    setting = replace(SMALL, max_staleness=0, deadline_s=900.0)
    figures, steps = await _played(db, "s0", setting)
    assert (figures.error, steps) == (None, [1, 2])
    # Each step waits for its slowest rollout, and then for the trainer.
    of_second_step = [RolloutId(f"s0/g{group:06d}/{n:03d}") for group in (2, 3) for n in (0, 1)]
    slowest_s = max(life_of(setting, rollout, 0, 0).play_s for rollout in of_second_step)
    step_s = PUBLISH_S + OPEN_S + slowest_s + GRADE_S + setting.train_s
    assert 3600 / (figures.steps_per_h or 0) == pytest.approx(step_s, abs=60)
    assert figures.trainer_idle == pytest.approx(1 - setting.train_s / step_s, abs=0.03)
    assert figures.staleness == {0: 1.0}
    assert figures.discarded_rollouts == figures.discarded_groups == 0
    assert (figures.cut_rollouts or 0) > 0


async def test_machines_of_minutes_cost_sandboxes_and_no_rollout(db: Database) -> None:
    setting = replace(ONE_STEP, lifetime_s=120.0, deadline_s=900.0, seed=45)
    lives = [life_of(setting, RolloutId("m/g000000/000"), 0, n) for n in range(MAX_LIVES + 1)]
    assert lives[-1].is_lost
    figures, _ = await _played(db, "m", setting)
    assert (figures.error, figures.steps_done) == (None, 1)
    assert figures.discarded_rollouts == 0 and figures.discarded_turns == 0
    assert gain(figures, [figures]) is None


async def test_masking_discards_what_a_lost_machine_played(db: Database) -> None:
    setting = replace(SMALL, num_steps=1, lifetime_s=2400.0, deadline_s=1800.0, on_loss=OnLoss.MASK)
    figures, _ = await _played(db, "masked", setting)
    assert figures.discarded_rollouts > 0
    assert 0 < (figures.discarded_turns or 0) < 1


# Hundreds of short activities: on a busy machine the server may skip time while one of them starts.
@pytest.mark.long
async def test_a_quorum_waits_for_no_last_rollout_and_discards_nothing(db: Database) -> None:
    waiting = replace(SMALL, groups_per_step=1, group_size=3, max_staleness=0, straggler_s=300.0)
    waited, _ = await _played(db, "waited", waiting)
    figures, _ = await _played(db, "quorum", replace(waiting, quorum=1))
    assert (figures.error, figures.steps_done) == (None, 2)
    assert figures.discarded_rollouts == figures.discarded_groups == figures.discarded_turns == 0
    assert (figures.cut_rollouts or 0) > 0 and waited.cut_rollouts == 0
    assert (figures.turns_mean or 0) < (waited.turns_mean or 0)
    faster = gain(figures, [figures, waited], waits_for_all=True)
    assert faster is not None and faster > 1.1
    assert gain(figures, [figures, waited]) == 1.0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--train-s", "soon"),
        ("--staleness", "-1"),
        ("--on-loss", "cry"),
        ("--quorums", "8"),
        ("--quorums", "0"),
    ],
)
def test_a_wrong_list_is_one_message(option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["bench", "simulate", option, value])
    assert result.exit_code == 2 and option in result.output
    assert "Traceback" not in result.output
