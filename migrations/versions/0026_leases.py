"""Leases are rows that their holders renew, and nodes tell their own time."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("since", moment, server_default=sa.func.now(), nullable=False),
        sa.Column("seen_at", moment, server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.add_column("nodes", sa.Column("clock", moment, nullable=True))


def downgrade() -> None:
    op.drop_column("nodes", "clock")
    op.drop_table("leases")
