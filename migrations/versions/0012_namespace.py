"""The store records the Temporal namespace that its work is in."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("store", sa.Column("namespace", sa.Text()))


def downgrade() -> None:
    op.drop_column("store", "namespace")
