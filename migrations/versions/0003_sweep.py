"""The sweep's end of a rollout, and open leases found without reading the closed ones."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BEFORE = (
    "'submitted', 'step_limit', 'format_errors', 'context_full', 'wall_time', 'cancelled', "
    "'infra_fault'"
)


def upgrade() -> None:
    _stop_reasons(f"{_BEFORE}, 'terminated'")
    op.create_index(
        "ix_sandboxes_open",
        "sandboxes",
        ["rollout_id"],
        postgresql_where=sa.text("status = 'open'"),
    )


def downgrade() -> None:
    op.drop_index("ix_sandboxes_open", table_name="sandboxes")
    op.execute("UPDATE rollouts SET stop_reason = 'infra_fault' WHERE stop_reason = 'terminated'")
    _stop_reasons(_BEFORE)


def _stop_reasons(words: str) -> None:
    op.drop_constraint(op.f("ck_rollouts_stop_reason"), "rollouts", type_="check")
    op.create_check_constraint(
        op.f("ck_rollouts_stop_reason"), "rollouts", f"stop_reason IN ({words})"
    )
