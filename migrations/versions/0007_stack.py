"""The store has an identity and a time of its last sweep; nodes tell when they end."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "store",
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("swept_at", sa.TIMESTAMP(timezone=True)),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_store")),
        sa.CheckConstraint("single", name=op.f("ck_store_single")),
    )
    op.execute("INSERT INTO store (id) VALUES (replace(gen_random_uuid()::text, '-', ''))")
    op.add_column("nodes", sa.Column("stopped_at", sa.TIMESTAMP(timezone=True)))


def downgrade() -> None:
    op.drop_column("nodes", "stopped_at")
    op.drop_table("store")
