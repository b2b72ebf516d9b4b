"""A report's data as a real campaign gives it, drawn from a seeded generator."""

import random
from datetime import UTC, datetime

from infra.db.reading.evaluations import Evaluation
from infra.db.reading.trained_steps import Composition, Lengths, Step
from mainspring.status import CampaignStatus, Sampling
from reports.data import ReportData, Totals

NUM_STEPS = 60


def report_data() -> ReportData:
    draw = random.Random(7)
    return ReportData(
        campaign="quickstart-0",
        status=CampaignStatus.FINISHED,
        seed=0,
        made_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        temporal_ui="http://127.0.0.1:8233",
        totals=Totals(
            num_steps=NUM_STEPS,
            num_rollouts=4672,
            num_turns=13_590,
            wall_s=611.4,
            max_logprob_gap=4.3e-5,
            num_gap_tokens=412_034,
            num_suspicious=31,
        ),
        evaluations=(
            Evaluation(0, "heldout", Sampling.SAMPLED, 128, 22),
            Evaluation(0, "heldout", Sampling.GREEDY, 128, 51),
            Evaluation(0, "heldout_templates", Sampling.SAMPLED, 64, 9),
            Evaluation(20, "heldout", Sampling.SAMPLED, 128, 55, num_masked=1),
            Evaluation(40, "heldout", Sampling.SAMPLED, 128, 74),
            Evaluation(60, "heldout", Sampling.SAMPLED, 128, 81),
            Evaluation(60, "heldout", Sampling.GREEDY, 128, 90),
            Evaluation(60, "heldout_templates", Sampling.SAMPLED, 64, 14),
        ),
        steps=tuple(_step(draw, step) for step in range(1, NUM_STEPS + 1)),
        lengths=tuple(
            Lengths(step, 2.9 + draw.gauss(0, 0.05), 78 + draw.gauss(0, 2))
            for step in range(1, NUM_STEPS + 1)
        ),
        compositions=tuple(_composition(draw, step) for step in range(1, NUM_STEPS + 1)),
        stop_reasons={"submitted": 4391, "step_limit": 120, "format_errors": 153, "cancelled": 8},
        verdicts={"resolved": 2310, "not_resolved": 2201, "no_patch": 140, "fault": 13},
        suspicions={"searched_history": 30, "edited_tests": 2},
    )


def _composition(draw: random.Random, step: int) -> Composition:
    parts = {
        "outcome": 2 * min(0.17 + 0.008 * step, 1.0) - 1 + draw.gauss(0, 0.05),
        "tests_passed": min(0.3 + 0.008 * step, 1.0),
        "my_rewards:small_patch": -0.4 + 0.004 * step,
    }
    return Composition(step, parts, suspicious=max(draw.gauss(0.02, 0.02), 0.0))


def _step(draw: random.Random, step: int) -> Step:
    num_mixed = draw.randint(3, 8)
    solved = min(0.17 + 0.5 * (1 - 0.95**step) + draw.gauss(0, 0.06), 1.0)
    return Step(
        step=step,
        reward_mean=solved,
        solve_rate=solved,
        mixed_groups=num_mixed,
        all_zero_groups=(8 - num_mixed) // 2,
        all_one_groups=(9 - num_mixed) // 2,
        masked_rollouts=int(step % 9 == 0),
        entropy=0.42 * 0.985**step + abs(draw.gauss(0, 0.01)),
        grad_norm=0.5 + abs(draw.gauss(0, 0.15)),
        clip_fraction=abs(draw.gauss(0.004, 0.002)),
        logprob_gap_max=10 ** draw.uniform(-6, -4.4),
        num_gap_tokens=0 if step % 3 else 6_900,
        train_s=abs(draw.gauss(1.2, 0.3)),
        staleness_mean=abs(draw.gauss(0.6, 0.1)),
        metrics=_metrics(step),
    )


def _metrics(step: int) -> dict[str, float | None]:
    """What else a step has; the first one has no time before it."""
    return {
        "loss": 0.02 - 0.0001 * step,
        "loss_policy": 0.018,
        "loss_kl": 0.003,
        "loss_entropy": -0.001,
        "clip_fraction_low": 0.001,
        "clip_fraction_high": 0.003,
        "tokens_per_s": 9000.0 + step,
        "goodput": None if step == 1 else 700.0 + step,
        "mfu": 0.41,
        "compute_s": 0.9,
        "seconds": 1.2,
        "trainer_idle_s": 3.5,
        "engine_idle_s": 0.4,
        "engine_requests_mean": 6.5,
        "rank_memory_peak_gib": 1.25,
    }
