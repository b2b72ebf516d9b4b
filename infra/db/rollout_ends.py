"""How a rollout ended, as conditions on its row: one place for what every count is made of.

Each is null, and so not met, where a column it needs is null. Imported by the modules beside this
file and by `reading`; what a single rollout's end means is in `mainspring.status`.
"""

from sqlalchemy import ColumnElement, and_, func

from infra.db.models import RolloutRow
from mainspring.status import RolloutPhase, Verdict

DONE: ColumnElement[bool] = RolloutRow.phase == RolloutPhase.DONE
SCORED = and_(DONE, RolloutRow.reward.is_not(None))
RESOLVED = and_(SCORED, RolloutRow.verdict == Verdict.RESOLVED)
SUSPICIOUS = and_(DONE, func.cardinality(RolloutRow.suspicions) > 0)
"""Looks like cheating."""
