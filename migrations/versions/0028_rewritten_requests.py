"""Requests of agents whose context was rewritten."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("calls", sa.Column("rewritten", sa.Text()))


def downgrade() -> None:
    op.drop_column("calls", "rewritten")
