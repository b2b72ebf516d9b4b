"""Rewards of single steps, and whether a world ended with one."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("executions", sa.Column("reward", sa.Double()))
    op.add_column(
        "executions",
        sa.Column("is_over", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("executions", "is_over")
    op.drop_column("executions", "reward")
