"""How many tokens were sampled in a rollout: sums over calls take seconds in a large campaign."""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("num_sampled_tokens", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("rollouts", "num_sampled_tokens")
