"""Supervised runs: their kind, and the samples that they are trained on."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_BEFORE = "'train', 'eval', 'verify', 'regrade'"


def upgrade() -> None:
    _kinds(f"{_BEFORE}, 'sft'")
    op.create_table(
        "sft_data",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("num_samples", sa.Integer(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_trained_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_skipped", sa.Integer(), nullable=False),
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("campaign_id", name=op.f("pk_sft_data")),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_sft_data_campaign_id")
        ),
    )
    op.create_table(
        "sft_samples",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("branch", sa.Integer(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("action_mask", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("campaign_id", "position", name=op.f("pk_sft_samples")),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_sft_samples_campaign_id")
        ),
    )


def downgrade() -> None:
    op.drop_table("sft_samples")
    op.drop_table("sft_data")
    # Earlier versions know no such run: what it made stays on disk.
    of_them = "(SELECT id FROM campaigns WHERE kind = 'sft')"
    for table in ("steps", "policy_versions", "trainer_leases"):
        op.execute(f"DELETE FROM {table} WHERE campaign_id IN {of_them}")
    op.execute("DELETE FROM campaigns WHERE kind = 'sft'")
    _kinds(_BEFORE)


def _kinds(words: str) -> None:
    op.drop_constraint(op.f("ck_campaigns_kind"), "campaigns", type_="check")
    op.create_check_constraint(op.f("ck_campaigns_kind"), "campaigns", f"kind IN ({words})")
