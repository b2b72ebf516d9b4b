"""The reward of a verdict. Pure.

Invariant 5: only what the agent did is scored; a fault or a cancellation gives None (masked).
"""

from mainspring.status import StopReason, Verdict

_MASKED_ENDS = frozenset({StopReason.CANCELLED, StopReason.INFRA_FAULT, StopReason.TERMINATED})


def outcome_reward(stop_reason: StopReason, verdict: Verdict | None) -> float | None:
    """1.0 when the hidden tests pass, 0.0 when the agent failed, None when nobody can say."""
    if stop_reason in _MASKED_ENDS or verdict is None or verdict is Verdict.FAULT:
        return None
    return 1.0 if verdict is Verdict.RESOLVED else 0.0
