"""A policy version has an identity: one that was discarded is told from the next of its number."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "policy_versions",
        sa.Column(
            "uid",
            sa.Text(),
            server_default=sa.text("substr(md5((gen_random_uuid())::text), 1, 12)"),
            nullable=False,
        ),
    )


def downgrade() -> None:
    op.drop_column("policy_versions", "uid")
