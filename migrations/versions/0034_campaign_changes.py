"""Changes of what campaigns run with."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_TABLE = "campaign_changes"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("field", sa.Text(), nullable=False),
        sa.Column("before", JSONB(), nullable=False),
        sa.Column("after", JSONB(), nullable=False),
        sa.Column("from_step", sa.Integer(), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.Column(
            "changed_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("number > 0", name=op.f(f"ck_{_TABLE}_number")),
        sa.CheckConstraint("from_step >= 0", name=op.f(f"ck_{_TABLE}_from_step")),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f(f"fk_{_TABLE}_campaign_id")
        ),
        sa.PrimaryKeyConstraint("campaign_id", "number", name=op.f(f"pk_{_TABLE}")),
    )


def downgrade() -> None:
    op.drop_table(_TABLE)
