"""Events: what happened to processes and was done by people."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

_TABLE = "events"


def upgrade() -> None:
    now = sa.text("now()")
    op.create_table(
        _TABLE,
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", sa.TIMESTAMP(timezone=True), server_default=now, nullable=False),
        sa.Column("last_at", sa.TIMESTAMP(timezone=True), server_default=now, nullable=False),
        sa.Column("count", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("campaign_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("data", JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_TABLE}")),
    )
    op.create_index(op.f(f"ix_{_TABLE}_campaign_id_last_at"), _TABLE, ["campaign_id", "last_at"])


def downgrade() -> None:
    op.drop_table(_TABLE)
