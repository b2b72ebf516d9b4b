"""Why a run does not use a task: its verification, or its pass rate in an evaluation."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("selections", sa.Column("exclusion", sa.Text()))
    op.create_check_constraint(
        op.f("ck_selections_exclusion"),
        "selections",
        "exclusion IN ('verification', 'pass_rate_low', 'pass_rate_high', 'no_pass_rate')",
    )


def downgrade() -> None:
    op.drop_column("selections", "exclusion")
