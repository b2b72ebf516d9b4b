"""Tests of one rollout, run against the patches of the others, and the sandboxes for it."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cross_tests",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("test", sa.Text(), nullable=False),
        sa.Column("without_patch", sa.Boolean(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_cross_tests_rollout_id")
        ),
        sa.PrimaryKeyConstraint(
            "rollout_id", "epoch", "test", "without_patch", name=op.f("pk_cross_tests")
        ),
    )
    # A word of its own among the purposes could not be read by the programs before.
    op.add_column(
        "sandboxes",
        sa.Column(
            "outlives_rollout", sa.Boolean(), server_default=sa.text("false"), nullable=False
        ),
    )


def downgrade() -> None:
    op.drop_column("sandboxes", "outlives_rollout")
    op.drop_table("cross_tests")
