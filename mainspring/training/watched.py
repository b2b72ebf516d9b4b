"""Figures of a step that warn: from which value on, and what it means. Pure.

Owns the thresholds, in one table; docs/metrics.md has them in words. Read by what shows a campaign:
`mainspring campaign show` and the report. A figure that was not measured warns of nothing; one that
is compared with its own past is drawn by the report and is not here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.parallel import Device

Metrics = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Watched:
    name: str
    is_bad: Callable[[float, Metrics, CampaignConfig], bool]
    means: str
    """Advice: what to look at, or to do."""


def _of(metrics: Metrics, name: str) -> float:
    return metrics.get(name) or 0.0


def _beyond(name: str) -> Callable[[float, Metrics, CampaignConfig], bool]:
    """Above a bound of the log-prob gap, which only warns where steps are not to fail."""

    def is_bad(value: float, metrics: Metrics, config: CampaignConfig) -> bool:
        bound = getattr(config.gap_bounds, name)
        return bound is not None and value > bound

    return is_bad


def _lost(value: float, metrics: Metrics, config: CampaignConfig) -> bool:
    return value > 0 and value >= _of(metrics, "num_tokens") / 2


WATCHED: tuple[Watched, ...] = (
    Watched("num_tokens", lambda v, m, c: trained_nothing(m), "nothing was trained"),
    Watched("kl", lambda v, m, c: v > 0.1, "the step moved too far: lower trainer.optimizer.lr"),
    Watched(
        "ratio_mean",
        lambda v, m, c: not 0.5 <= v <= 2,
        "the policy is far from the one that sampled",
    ),
    Watched(
        "clip_fraction",
        # Whole sequences are clipped with "gspo", most of them in an ordinary step.
        lambda v, m, c: v > 0.2 and c.trainer.loss != "gspo",
        "lower trainer.optimizer.lr or trainer.max_staleness",
    ),
    Watched("entropy", lambda v, m, c: v < 0.01, "the policy has collapsed"),
    Watched("grad_norm", lambda v, m, c: v == 0, "the policy did not move"),
    Watched("correction_cut", lambda v, m, c: v > 0.05, "engine and trainer disagree about tokens"),
    Watched(
        "value_explained_variance",
        lambda v, m, c: v < 0,
        "the critic is worse than a constant: raise trainer.critic.lr or warmup_steps",
    ),
    Watched("value_clip_fraction", lambda v, m, c: v > 0.2, "lower trainer.critic.lr"),
    Watched(
        "staleness_mean",
        lambda v, m, c: v > c.trainer.max_staleness,
        "rollouts last longer than steps: lower trainer.max_staleness or agent.step_limit",
    ),
    Watched("staleness_3plus", lambda v, m, c: v > 0.5, "rollouts last longer than three steps"),
    Watched(
        "num_stale_tokens_masked",
        _lost,
        "work is lost: raise trainer.max_token_staleness or lower max_staleness",
    ),
    Watched(
        "num_overlong_masked",
        lambda v, m, c: v > 0 and v >= _of(m, "num_samples"),
        "the limits of [agent] or policy.max_context are too tight",
    ),
    Watched("logprob_gap_max", _beyond("max"), "engine and trainer hold other weights"),
    Watched("logprob_gap_mean", _beyond("mean"), "engine and trainer hold other weights"),
    Watched("logprob_gap_p999", _beyond("p999"), "engine and trainer hold other weights"),
    Watched("logprob_gap_k3", _beyond("k3"), "engine and trainer hold other weights"),
    Watched(
        "mfu",
        lambda v, m, c: v < 0.2 and c.trainer.device is Device.CUDA,
        "small micro-batches or slow links",
    ),
)


def trained_nothing(metrics: Metrics) -> bool:
    """No token was in the step's loss, and no critic was trained alone: its warm-up means that."""
    return metrics.get("num_tokens") == 0 and metrics.get("critic_grad_norm") is None


def warnings(steps: Sequence[tuple[int, Metrics]], config: CampaignConfig) -> list[str]:
    """Warnings of the newest of these steps, by number; and which of them all trained nothing."""
    if not steps:
        return []
    newest, metrics = steps[-1]
    sentences = []
    empty = [step for step, of_step in steps if trained_nothing(of_step)]
    if empty:
        named = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        noun = "step" if len(empty) == 1 else "steps"
        sentences.append(f"{noun} {named} of {len(steps)} trained nothing: see num_tokens")
    for watched in WATCHED[1:]:
        value = metrics.get(watched.name)
        if value is not None and watched.is_bad(value, metrics, config):
            sentences.append(f"step {newest}: {watched.name} is {value:.3g}: {watched.means}")
    return sentences
