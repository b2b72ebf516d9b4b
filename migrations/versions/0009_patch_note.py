"""A patch has a note of what it lacks, and of why there is none."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("patch_note", sa.Text()))


def downgrade() -> None:
    op.drop_column("rollouts", "patch_note")
