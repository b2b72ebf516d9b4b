"""Replies that sum up a history that is too long."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A default that is a constant rewrites no row.
    op.add_column(
        "calls", sa.Column("is_summary", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    op.drop_column("calls", "is_summary")
