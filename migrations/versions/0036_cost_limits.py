"""Rollouts that end because their calls cost as much as they may."""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_BEFORE = (
    "'submitted', 'step_limit', 'format_errors', 'context_full', 'wall_time', 'cancelled', "
    "'infra_fault', 'terminated', 'given', 'exited', 'request_rate', 'straggler'"
)


def upgrade() -> None:
    _stop_reasons(f"{_BEFORE}, 'cost_limit'")


def downgrade() -> None:
    op.execute("UPDATE rollouts SET stop_reason = 'step_limit' WHERE stop_reason = 'cost_limit'")
    _stop_reasons(_BEFORE)


def _stop_reasons(words: str) -> None:
    op.drop_constraint(op.f("ck_rollouts_stop_reason"), "rollouts", type_="check")
    op.create_check_constraint(
        op.f("ck_rollouts_stop_reason"), "rollouts", f"stop_reason IN ({words})"
    )
