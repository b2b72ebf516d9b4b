"""An index for lists of rollouts that begin with the newest group."""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_rollouts_newest",
        "rollouts",
        ["campaign_id", sa.text("created_at DESC"), "group_id", "sample_index"],
    )


def downgrade() -> None:
    op.drop_index("ix_rollouts_newest", "rollouts")
