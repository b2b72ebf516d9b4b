"""A campaign has an identity of its own, and its trainer a lease."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "campaigns",
        sa.Column(
            "uid",
            sa.Text(),
            server_default=sa.text("(gen_random_uuid())::text"),
            nullable=False,
        ),
    )
    op.create_table(
        "trainer_leases",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("released", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "since", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column(
            "seen_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("campaign_id", name=op.f("pk_trainer_leases")),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_trainer_leases_campaign_id")
        ),
    )


def downgrade() -> None:
    op.drop_table("trainer_leases")
    op.drop_column("campaigns", "uid")
