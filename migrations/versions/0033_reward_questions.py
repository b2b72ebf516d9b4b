"""Questions that reward functions of one's own ask judges."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_TABLES = ("judge_votes", "judgements")


def upgrade() -> None:
    for table in _TABLES:
        _allow(table, "'turns', 'rollout', 'reward'")


def downgrade() -> None:
    for table in _TABLES:
        op.execute(sa.text(f"DELETE FROM {table} WHERE of = 'reward'"))
        _allow(table, "'turns', 'rollout'")


def _allow(table: str, words: str) -> None:
    name = op.f(f"ck_{table}_of")
    op.drop_constraint(name, table)
    op.create_check_constraint(name, table, f"of IN ({words})")
