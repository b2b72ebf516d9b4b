"""Rollouts that agents outside play: sessions that are offered, and keys that take them."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_NOW = sa.text("now()")
_TIME = sa.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.create_table(
        "campaign_keys",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("campaign_id", name=op.f("pk_campaign_keys")),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_campaign_keys_campaign_id")
        ),
    )
    op.create_index(op.f("ix_campaign_keys_key_hash"), "campaign_keys", ["key_hash"])
    op.create_table(
        "offered_sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("life", sa.Integer(), nullable=False),
        sa.Column("offered_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("claim", sa.Text()),
        sa.Column("taken_by", sa.Text()),
        sa.Column("taken_at", _TIME),
        sa.Column("deadline", _TIME),
        sa.Column("seen_at", _TIME),
        sa.Column("ending", sa.Text()),
        sa.Column("result_hash", sa.Text()),
        sa.Column("note", sa.Text()),
        sa.Column("ended_at", _TIME),
        sa.CheckConstraint(
            "ending IN ('patch', 'reward', 'error', 'released', 'silent', 'limit')",
            name=op.f("ck_offered_sessions_ending"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_offered_sessions")),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_offered_sessions_campaign_id")
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_offered_sessions_rollout_id")
        ),
        sa.UniqueConstraint(
            "rollout_id",
            "epoch",
            "life",
            name=op.f("uq_offered_sessions_rollout_id_epoch_life"),
        ),
        sa.UniqueConstraint(
            "campaign_id", "claim", name=op.f("uq_offered_sessions_campaign_id_claim")
        ),
    )
    op.create_index(
        "ix_offered_sessions_waiting",
        "offered_sessions",
        ["campaign_id", "offered_at"],
        postgresql_where=sa.text("taken_at IS NULL AND ended_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("offered_sessions")
    op.drop_table("campaign_keys")
