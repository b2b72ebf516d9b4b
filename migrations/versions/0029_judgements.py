"""Judgements of turns and rollouts, and their votes."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_KEY = ("rollout_id", "epoch", "judge", "of", "call")


def upgrade() -> None:
    _create(
        "judge_votes",
        [
            sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
            sa.Column("text", sa.Text(), nullable=False),
            sa.Column("value", sa.Double()),
        ],
        (*_KEY, "number"),
    )
    _create(
        "judgements",
        [
            sa.Column("prompt_sha256", sa.Text(), nullable=False),
            sa.Column("score", sa.Double()),
            sa.Column("num_votes", sa.Integer(), nullable=False),
            sa.Column("num_valid", sa.Integer(), nullable=False),
            sa.Column("missing", sa.Text()),
        ],
        _KEY,
    )
    op.create_index("ix_judgements_judge_created_at", "judgements", ["judge", "created_at"])


def downgrade() -> None:
    op.drop_table("judgements")
    op.drop_table("judge_votes")


def _create(table: str, columns: list[sa.Column], key: tuple[str, ...]) -> None:
    op.create_table(
        table,
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("judge", sa.Text(), nullable=False),
        sa.Column("of", sa.Text(), nullable=False),
        sa.Column("call", sa.Integer(), autoincrement=False, nullable=False),
        *columns,
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint(*key, name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=f"fk_{table}_rollout_id"),
        sa.CheckConstraint("of IN ('turns', 'rollout')", name=op.f(f"ck_{table}_of")),
    )
