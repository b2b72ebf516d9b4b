"""Results of a training campaign: resolve rates before and after, and its largest gap.

Pure. Imported by `pages`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.db.reading.evaluations import Evaluation, scored_of
from infra.db.reading.trained_steps import Step
from mainspring.status import Sampling
from mainspring.words.figures import number, percent


@dataclass(frozen=True, slots=True)
class Headline:
    label: str
    value: str
    before: str = ""
    """Value of the first policy."""
    note: str = ""
    tone: str = ""
    """"good" or "bad" colours the value."""


def headlines(
    evaluations: Sequence[Evaluation],
    steps: Sequence[Step],
    main_split: str,
    gap_bound: float | None,
    first_version: int,
) -> list[Headline]:
    """Those that were measured: the main split leads. `first_version`: what the run begins with."""
    kinds = dict.fromkeys((each.split, each.sampling) for each in evaluations)
    ordered = sorted(kinds, key=lambda kind: (kind[0] != main_split, kind[1] is Sampling.GREEDY))
    found = [_rate(split, sampling, evaluations, first_version) for split, sampling in ordered]
    gaps = [s.logprob_gap_max for s in steps if s.num_gap_tokens and s.logprob_gap_max is not None]
    if gaps:
        found.append(_gap(max(gaps), sum(s.num_gap_tokens or 0 for s in steps), gap_bound))
    return [each for each in found if each is not None]


def _rate(
    split: str, sampling: Sampling, evaluations: Sequence[Evaluation], first_version: int
) -> Headline | None:
    scored = scored_of(evaluations, split, sampling)
    if not scored:
        return None
    first, newest = scored[0], scored[-1]
    low, high = newest.interval
    label = f"{split.replace('_', ' ')}, {sampling.value}"
    note = f"95 %: {100 * low:.0f}-{100 * high:.0f} %, {newest.num_scored} tasks, v{newest.version}"
    value = percent(newest.solve_rate)
    if newest is first or first.version != first_version:
        return Headline(label, value, note=note)
    before, after = first.solve_rate or 0.0, newest.solve_rate or 0.0
    tone = "good" if after > before else "bad" if after < before else ""
    return Headline(label, value, percent(before), note, tone)


def _gap(gap: float, num_tokens: int, bound: float | None) -> Headline:
    note = f"over {num_tokens:,} tokens" + (f"; bound {bound:g}" if bound is not None else "")
    tone = "" if bound is None else "good" if gap <= bound else "bad"
    return Headline("largest log-prob gap", number(gap), note=note, tone=tone)
