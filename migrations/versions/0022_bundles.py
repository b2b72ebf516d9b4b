"""Which bundle the program of each life ran from."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("program_lives", sa.Column("bundle_sha256", sa.Text()))


def downgrade() -> None:
    op.drop_column("program_lives", "bundle_sha256")
