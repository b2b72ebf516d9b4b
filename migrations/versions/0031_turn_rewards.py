"""Rewards of a rollout's turns."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("turn_rewards", postgresql.JSONB()))


def downgrade() -> None:
    op.drop_column("rollouts", "turn_rewards")
