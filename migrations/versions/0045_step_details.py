"""Add what a step did with each rollout of its batch, and the worst log-prob gaps."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

_WHYS = "'masked', 'no_tokens', 'overlong', 'stale', 'critic_warmup', 'zero_advantage'"


def upgrade() -> None:
    op.create_table(
        "step_rollouts",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("advantage", sa.Double(), nullable=True),
        sa.Column("is_mean", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("call_advantages", postgresql.JSONB(), nullable=True),
        sa.Column("num_trained_tokens", sa.Integer(), nullable=False),
        sa.Column("masked_why", sa.Text(), nullable=True),
        sa.CheckConstraint(f"masked_why IN ({_WHYS})", name=op.f("ck_step_rollouts_masked_why")),
        sa.ForeignKeyConstraint(
            ["campaign_id", "step"],
            ["steps.campaign_id", "steps.step"],
            name=op.f("fk_step_rollouts_campaign_id_step"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("campaign_id", "step", "rollout_id", name=op.f("pk_step_rollouts")),
    )
    op.create_index(op.f("ix_step_rollouts_rollout_id"), "step_rollouts", ["rollout_id"])
    op.create_table(
        "step_gaps",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("call", sa.Integer(), nullable=False),
        sa.Column("offset", sa.Integer(), nullable=False),
        sa.Column("served", sa.Double(), nullable=True),
        sa.Column("recomputed", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["campaign_id", "step"],
            ["steps.campaign_id", "steps.step"],
            name=op.f("fk_step_gaps_campaign_id_step"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "campaign_id", "step", "rollout_id", "call", "offset", name=op.f("pk_step_gaps")
        ),
    )
    op.create_index(op.f("ix_step_gaps_rollout_id"), "step_gaps", ["rollout_id"])
    op.create_table(
        "step_tokens",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("call", sa.Integer(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("entropies", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["campaign_id", "step"],
            ["steps.campaign_id", "steps.step"],
            name=op.f("fk_step_tokens_campaign_id_step"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "campaign_id", "step", "rollout_id", "call", name=op.f("pk_step_tokens")
        ),
    )
    op.create_index(op.f("ix_step_tokens_rollout_id"), "step_tokens", ["rollout_id"])


def downgrade() -> None:
    op.drop_table("step_tokens")
    op.drop_table("step_gaps")
    op.drop_table("step_rollouts")
