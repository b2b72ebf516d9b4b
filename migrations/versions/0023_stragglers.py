"""Rollouts that end because most of their group has ended."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_BEFORE = (
    "'submitted', 'step_limit', 'format_errors', 'context_full', 'wall_time', 'cancelled', "
    "'infra_fault', 'terminated', 'given', 'exited', 'request_rate'"
)


def upgrade() -> None:
    _stop_reasons(f"{_BEFORE}, 'straggler'")


def downgrade() -> None:
    op.execute("UPDATE rollouts SET stop_reason = 'wall_time' WHERE stop_reason = 'straggler'")
    _stop_reasons(_BEFORE)


def _stop_reasons(words: str) -> None:
    op.drop_constraint(op.f("ck_rollouts_stop_reason"), "rollouts", type_="check")
    op.create_check_constraint(
        op.f("ck_rollouts_stop_reason"), "rollouts", f"stop_reason IN ({words})"
    )
