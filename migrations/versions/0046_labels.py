"""Add labels and notes of rollouts."""

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create("rollout_labels", "name", key=["rollout_id", "name"])
    op.create_index(op.f("ix_rollout_labels_name"), "rollout_labels", ["name"])
    _create("rollout_notes", "text", key=["rollout_id"])


def _create(table: str, content: str, key: list[str]) -> None:
    op.create_table(
        table,
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column(content, sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.TIMESTAMP(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f(f"fk_{table}_rollout_id")
        ),
        sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{table}")),
    )


def downgrade() -> None:
    op.drop_table("rollout_notes")
    op.drop_table("rollout_labels")
