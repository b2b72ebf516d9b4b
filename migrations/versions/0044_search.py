"""Words of ended rollouts, and of which epoch they are: by them rollouts are searched."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

_TABLE = "search_pieces"
_PARTS = "'thought', 'command', 'output', 'patch', 'tests'"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("call", sa.Integer(), nullable=True),
        sa.Column("index", sa.Integer(), nullable=True),
        sa.Column("returncode", sa.Integer(), nullable=True),
        sa.Column("at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("words", TSVECTOR(), nullable=False),
        sa.CheckConstraint(f"part IN ({_PARTS})", name=op.f(f"ck_{_TABLE}_part")),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f(f"fk_{_TABLE}_rollout_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_TABLE}")),
    )
    for columns in (["rollout_id"], ["at", "id"], ["campaign_id", "at", "id"]):
        op.create_index(op.f(f"ix_{_TABLE}_{'_'.join(columns)}"), _TABLE, columns)
    op.create_index(
        op.f(f"ix_{_TABLE}_words"),
        _TABLE,
        ["words"],
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
    )
    op.add_column("rollouts", sa.Column("searched_epoch", sa.Integer(), nullable=True))
    op.create_index(
        "ix_rollouts_unsearched",
        "rollouts",
        ["finished_at"],
        postgresql_where=sa.text("phase = 'done' AND searched_epoch IS DISTINCT FROM epoch"),
    )


def downgrade() -> None:
    op.drop_index("ix_rollouts_unsearched", "rollouts")
    op.drop_column("rollouts", "searched_epoch")
    op.drop_table(_TABLE)
