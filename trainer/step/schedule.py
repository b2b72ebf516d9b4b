"""Learning-rate schedules: pure functions from a step's number to a factor on the base rate."""

WARM_START_WARMUP_STEPS = 20
WARM_START_FINAL_SCALE = 0.05


def lr_scale(step: int, num_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Linear warm-up over `warmup_steps`, times a linear fall towards `final_fraction`.

    `step` counts from 0; the fraction would be reached at `num_steps`.
    """
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    return warmup * (final_fraction + (1 - final_fraction) * (1 - step / num_steps))


def policy_lr_scale(
    step: int, num_steps: int, warmup_steps: int, final_fraction: float, critic_steps: int = 0
) -> float | None:
    """Scale of a campaign's step, from 0. The first `critic_steps` train a critic alone: they take
    nothing from the policy's warm-up and fall, as in verl, and have no rate."""
    if step < critic_steps:
        return None
    return lr_scale(step - critic_steps, num_steps - critic_steps, warmup_steps, final_fraction)


def copy_scale(step: int) -> float:
    """The warm start's copying phase: a linear warm-up, then constant."""
    return min(1.0, (step + 1) / WARM_START_WARMUP_STEPS)


def warm_start_scale(step: int, num_steps: int) -> float:
    """The warm start proper: warm-up, constant for the first half, then a linear fall."""
    fall = min(1.0, 2 * (1 - step / num_steps))
    return copy_scale(step) * max(WARM_START_FINAL_SCALE, fall)
