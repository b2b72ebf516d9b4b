"""Campaigns that begin with a policy version of another one."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("campaigns", sa.Column("parent", JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("campaigns", "parent")
