"""Engines as members of a campaign's fleet, and the engine that gave each reply."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "engines",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("life", sa.Text(), nullable=False),
        sa.Column("draining", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("added_by", sa.Text(), nullable=False),
        sa.Column(
            "joined_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("looked_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("seen_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("fault", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("version", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("model", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("vocab_size", sa.Integer(), nullable=True),
        sa.Column("num_running", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("num_waiting", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("kv_used", sa.Float(), nullable=True),
        sa.CheckConstraint(
            "origin IN ('listed', 'added', 'registered')", name=op.f("ck_engines_origin")
        ),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_engines_campaign_id")
        ),
        sa.PrimaryKeyConstraint("campaign_id", "name", name=op.f("pk_engines")),
        sa.UniqueConstraint("campaign_id", "url", name=op.f("uq_engines_campaign_id_url")),
    )
    op.add_column(
        "calls", sa.Column("engine", sa.Text(), server_default=sa.text("''"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("calls", "engine")
    op.drop_table("engines")
