"""The log-prob gap: how far engine and trainer disagree about tokens of the same weights.

Owns its section of a campaign file, its bounds for each dtype of the engines, and its figures.
A figure that was measured on no token is None, never 0. Pure; numpy only, and only where something
is measured: each command reads this section, and numpy takes a fifth of its start.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from mainspring.config.section import LARGE, Section, Within

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Dtype(StrEnum):
    FLOAT32 = "float32"
    """Engine and trainer compute the same numbers up to rounding."""
    BFLOAT16 = "bfloat16"
    """The engines round to 8 bits of mantissa. The trainer computes in float32."""


class GapMode(StrEnum):
    ENFORCE = "enforce"
    """A gap beyond a bound fails the step, and with it the campaign."""
    WARN = "warn"
    """A gap beyond a bound is logged and recorded; training continues."""


class GapConfig(Section):
    """Served log-probs are compared with recomputed ones, over all tokens of a batch that were
    sampled under the weights the step begins with. A bound that is unset has the value that fits
    `policy.dtype`: for float32 `max = 0.001`, for bfloat16 `mean = 0.05`, `p999 = 0.5` and
    `k3 = 0.01`; other figures are then only reported."""

    mode: GapMode = GapMode.ENFORCE
    """Effect of a gap beyond a bound."""
    max: Annotated[float | None, Within(le=LARGE)] = Field(default=None, gt=0)
    """Bound on the largest difference of one token, in nats."""
    mean: Annotated[float | None, Within(le=LARGE)] = Field(default=None, gt=0)
    """Bound on the mean difference, in nats."""
    p999: Annotated[float | None, Within(le=LARGE)] = Field(default=None, gt=0)
    """Bound on the difference that 99.9 % of the tokens stay below, in nats."""
    k3: Annotated[float | None, Within(le=LARGE)] = Field(default=None, gt=0)
    """Bound on KL(engine || trainer) per token, by the estimator k3, in nats."""


@dataclass(frozen=True, slots=True)
class GapBounds:
    """None: the figure is not bounded."""

    max: float | None = None
    mean: float | None = None
    p999: float | None = None
    k3: float | None = None


DEFAULT_BOUNDS = {
    # An honest float32 engine stays below 1e-4, also SGLang's (2e-5 on 890 tokens of a 135M model).
    Dtype.FLOAT32: GapBounds(max=1e-3),
    # SmolLM2-135M in bfloat16 against float32, 570 tokens: mean 0.033, p99.9 0.228, max 0.274,
    # hence k3 of about 0.001 (half of the mean square). The bounds leave room for larger models;
    # the maximum grows with the number of tokens and tells nothing. Other weights give a mean of
    # 0.1 and more.
    Dtype.BFLOAT16: GapBounds(mean=0.05, p999=0.5, k3=0.01),
}


def bounds(config: GapConfig, dtype: Dtype) -> GapBounds:
    """The configured bounds; each unset one as the dtype has it."""
    default = DEFAULT_BOUNDS[dtype]

    def either(own: float | None, usual: float | None) -> float | None:
        return usual if own is None else own

    return GapBounds(
        max=either(config.max, default.max),
        mean=either(config.mean, default.mean),
        p999=either(config.p999, default.p999),
        k3=either(config.k3, default.k3),
    )


@dataclass(frozen=True, slots=True)
class LogprobGap:
    """|served - recomputed| over the tokens of one policy version."""

    max: float | None
    mean: float | None
    p999: float | None
    k3: float | None
    num_tokens: int
    """Tokens it was measured on; with 0 every figure is None."""
    p50: float | None = None
    p99: float | None = None

    def beyond(self, bounds: GapBounds) -> list[str]:
        """Each figure that exceeds its bound, with the bound; empty when unmeasured."""
        figures = (
            ("max", self.max, bounds.max),
            ("mean", self.mean, bounds.mean),
            ("p99.9", self.p999, bounds.p999),
            ("k3", self.k3, bounds.k3),
        )
        return [
            f"{name} {figure:.2e} (at most {bound:.0e})"
            for name, figure, bound in figures
            if figure is not None and bound is not None and not figure <= bound
        ]


def measure(differences: "NDArray[np.floating]") -> LogprobGap:
    """From recomputed - served of each token: [N]. What is not a number counts as infinite."""
    import numpy as np

    if not len(differences):
        return LogprobGap(None, None, None, None, 0)
    signed = np.nan_to_num(differences.astype(np.float64), nan=np.inf, posinf=np.inf)
    gaps = np.abs(signed)
    with np.errstate(over="ignore", invalid="ignore"):
        k3 = np.nan_to_num(np.expm1(signed) - signed, nan=np.inf)
    finite = bool(np.isfinite(gaps).all())
    # numpy interpolates between the two neighbours, which infinities turn into nan
    p50, p99, p999 = np.quantile(gaps, (0.5, 0.99, 0.999)) if finite else [np.inf] * 3
    return LogprobGap(
        max=float(gaps.max()),
        mean=float(gaps.mean()),
        p999=float(p999),
        k3=float(k3.mean()),
        num_tokens=len(gaps),
        p50=float(p50),
        p99=float(p99),
    )
