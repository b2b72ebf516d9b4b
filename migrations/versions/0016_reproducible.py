"""What a reproducible campaign keeps: draws of groups, seeds of rollouts, fingerprints of weights.

Campaigns stored before have none of it, and run as they did.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("groups", sa.Column("draw", sa.Integer()))
    op.add_column("rollouts", sa.Column("seed", sa.Integer()))
    op.add_column("policy_versions", sa.Column("fingerprint", JSONB()))
    op.add_column("policy_versions", sa.Column("stamp", JSONB()))


def downgrade() -> None:
    op.drop_column("policy_versions", "stamp")
    op.drop_column("policy_versions", "fingerprint")
    op.drop_column("rollouts", "seed")
    op.drop_column("groups", "draw")
