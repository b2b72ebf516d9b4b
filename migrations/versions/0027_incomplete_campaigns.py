"""Campaigns whose rows come or go, and an index for rollouts that name another as their source."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("campaigns", sa.Column("incomplete", sa.Text()))
    op.create_check_constraint("incomplete", "campaigns", "incomplete IN ('deleting', 'restoring')")
    # Without it the end of each deleted rollout reads all rollouts, for those that name it.
    op.create_index(
        "ix_rollouts_source",
        "rollouts",
        ["source_rollout_id"],
        postgresql_where=sa.text("source_rollout_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_rollouts_source", "rollouts")
    op.drop_constraint("incomplete", "campaigns", type_="check")
    op.drop_column("campaigns", "incomplete")
