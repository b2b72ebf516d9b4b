"""Indexes for what must not read rollouts that ended long ago."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_rollouts_playing",
        "rollouts",
        ["started_at"],
        postgresql_where=sa.text("phase <> 'done'"),
    )
    op.create_index(
        op.f("ix_rollouts_campaign_id_finished_at"), "rollouts", ["campaign_id", "finished_at"]
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_rollouts_campaign_id_finished_at"), "rollouts")
    op.drop_index("ix_rollouts_playing", "rollouts")
