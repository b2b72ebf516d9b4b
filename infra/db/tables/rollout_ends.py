"""How a rollout ended, as conditions on its row: one place for what every count is made of.

Imported by the modules beside this file and by `reading`. What one rollout's end means is in
`mainspring.status`, whose `is_masked` is MASKED here.
"""

from sqlalchemy import ColumnElement, and_, func, or_, select

from infra.db.tables.columns import num_packed
from infra.db.tables.models import CallRow, RolloutRow
from mainspring.status import MASKED_ENDS, RolloutPhase, Verdict

DONE: ColumnElement[bool] = RolloutRow.phase == RolloutPhase.DONE
SCORED = and_(DONE, RolloutRow.reward.is_not(None))
RESOLVED = and_(SCORED, RolloutRow.verdict == Verdict.RESOLVED)
HAS_VERDICT = and_(RolloutRow.verdict.is_not(None), RolloutRow.verdict != Verdict.FAULT)
JUDGED = and_(DONE, RolloutRow.stop_reason.not_in(MASKED_ENDS), HAS_VERDICT)
"""Ended by itself, and graded."""
MASKED = and_(DONE, or_(RolloutRow.stop_reason.in_(MASKED_ENDS), ~HAS_VERDICT))
"""Ended, and tells nothing about the agent."""
SUSPICIOUS = and_(DONE, func.cardinality(RolloutRow.suspicions) > 0)
"""Looks like cheating."""
SAMPLED_TOKENS = (
    select(func.coalesce(func.sum(num_packed(CallRow.completion_ids)), 0))
    .where(CallRow.rollout_id == RolloutRow.id, CallRow.epoch == RolloutRow.epoch)
    .scalar_subquery()
)
"""Tokens that the policy sampled in its epoch, counted from its calls."""
