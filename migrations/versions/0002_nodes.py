"""Nodes: the container hosts, what each last said of itself, and whether it is to drain."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("capacity", sa.Integer(), nullable=False),
        sa.Column("num_open", sa.Integer(), nullable=False),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("draining", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("backends", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("images", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("disk_free_mb", sa.Integer(), nullable=False),
        sa.Column("memory_free_mb", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("started_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column(
            "seen_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "refusal IN ('draining', 'full', 'low memory', 'low disk')",
            name=op.f("ck_nodes_refusal"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )


def downgrade() -> None:
    op.drop_table("nodes")
