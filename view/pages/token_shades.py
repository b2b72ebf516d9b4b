"""Colours of tokens: the class of each token and the words of the scale, by what they tell.

Pure. Imported by `tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf

WAYS = ("log-prob", "probability", "version", "trained", "advantage", "gap", "entropy")
NUM_SHADES = 6
_LOGPROBS = (-0.02, -0.2, -0.7, -1.6, -3.0)
_LOGPROB_WORDS = ("above -0.02", "to -0.2", "to -0.7", "to -1.6", "to -3", "below -3")
_GAPS = (0.001, 0.01, 0.1, 1.0)
_GAP_WORDS = ("below 0.001", "to 0.01", "to 0.1", "to 1", "above 1")
_ENTROPIES = (0.05, 0.2, 0.5, 1.0, 2.0)
_ENTROPY_WORDS = ("below 0.05", "to 0.2", "to 0.5", "to 1", "to 2", "above 2")
_STRONG = 1.0
"""Advantage that has the stronger colour: one standard deviation of a group."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token of a reply, as far as its colour needs it."""

    logprob: float
    version: int | None
    is_trained: bool
    advantage: float | None
    """None: not known, or it has none."""
    recomputed: float | None
    """Log-prob that the trainer computed; None: it is not stored."""
    has_gap: bool
    """Its gap is stored: it is among the largest of the step, or all are kept."""
    entropy: float | None
    """In nats; None: it is not stored."""

    @property
    def gap(self) -> float | None:
        if not self.has_gap:
            return None
        return inf if self.recomputed is None else abs(self.recomputed - self.logprob)


def shade(by: str, token: Sampled, versions: Sequence[int]) -> str:
    """Class of its colour. `versions`: of all tokens that are shown."""
    if by == "version":
        known = token.version in versions
        return f"v{versions.index(token.version) % NUM_SHADES}" if known else "context"
    if by == "trained":
        return "trained" if token.is_trained else "masked"
    if by == "advantage":
        return _of_advantage(token)
    if by == "gap":
        gap = token.gap
        return "p0" if gap is None else f"p{1 + sum(gap >= bound for bound in _GAPS)}"
    if by == "entropy":
        entropy = token.entropy
        return "context" if entropy is None else f"p{sum(entropy >= e for e in _ENTROPIES)}"
    if by == "probability":
        improbable = 1 - exp(min(token.logprob, 0.0))
        return f"p{min(NUM_SHADES - 1, int(improbable * NUM_SHADES))}"
    return f"p{sum(token.logprob < bound for bound in _LOGPROBS)}"


def _of_advantage(token: Sampled) -> str:
    if not token.is_trained:
        return "masked"
    if not token.advantage:
        return "p0"
    strength = 2 if abs(token.advantage) >= _STRONG else 1
    return f"{'better' if token.advantage > 0 else 'worse'}{strength}"


def scale(by: str, versions: Sequence[int]) -> list[tuple[str, str]]:
    """Class and words of each shade."""
    if by == "version":
        shades = [(f"v{n % NUM_SHADES}", f"version {each}") for n, each in enumerate(versions)]
    elif by == "trained":
        shades = [("trained", "trained"), ("masked", "not trained")]
    elif by == "advantage":
        shades = [
            ("better2", "1 and above"),
            ("better1", "above 0"),
            ("p0", "0, or not known"),
            ("worse1", "below 0"),
            ("worse2", "-1 and below"),
            ("masked", "not trained"),
        ]
    elif by == "gap":
        shades = [("p0", "not stored")]
        shades += [(f"p{n}", word) for n, word in enumerate(_GAP_WORDS, 1)]
    elif by == "entropy":
        shades = [(f"p{n}", word) for n, word in enumerate(_ENTROPY_WORDS)]
    elif by == "probability":
        shades = [
            (f"p{n}", f"{100 - 100 * (n + 1) // NUM_SHADES} to {100 - 100 * n // NUM_SHADES} %")
            for n in range(NUM_SHADES)
        ]
    else:
        shades = [(f"p{n}", word) for n, word in enumerate(_LOGPROB_WORDS)]
    return [*shades, ("context", "prompt, not sampled" if by != "entropy" else "not stored")]
