"""Records of a reproducible campaign: draws of groups, seeds of rollouts, fingerprints of weights;
and of every rollout the reply that is under way.

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
    op.create_table(
        "partial_calls",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("completion_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("spans", JSONB(), nullable=False),
        sa.Column("latency_s", sa.Double(), nullable=False),
        sa.Column(
            "updated_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name="fk_partial_calls_rollout_id"
        ),
        sa.PrimaryKeyConstraint("rollout_id", name="pk_partial_calls"),
    )


def downgrade() -> None:
    op.drop_table("partial_calls")
    op.drop_column("policy_versions", "stamp")
    op.drop_column("policy_versions", "fingerprint")
    op.drop_column("rollouts", "seed")
    op.drop_column("groups", "draw")
