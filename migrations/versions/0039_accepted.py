"""The oldest program that works on the schema, so that processes are upgraded one by one."""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("store", sa.Column("oldest_accepted", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("store", "oldest_accepted")
