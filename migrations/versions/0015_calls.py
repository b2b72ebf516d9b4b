"""A rollout's record is a tree of calls; a call may ask for several commands.

What was stored before is one branch: each call extends the one before it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.rename_table("generations", "calls")
    op.alter_column("calls", "turn", new_column_name="number")
    op.add_column("calls", sa.Column("parent", sa.Integer()))
    op.execute("UPDATE calls SET parent = number - 1 WHERE number > 0")
    op.alter_column("executions", "turn", new_column_name="call")
    # A default fills the rows that are there without a rewrite of the table.
    op.add_column(
        "executions", sa.Column("index", sa.Integer(), nullable=False, server_default=sa.text("0"))
    )
    op.alter_column("executions", "index", server_default=None)
    op.drop_constraint("pk_executions", "executions")
    op.create_primary_key("pk_executions", "executions", ["rollout_id", "epoch", "call", "index"])
    _rename_constraints("calls", {"generations": "calls", "_turn_": "_number_"})
    _rename_constraints("executions", {"_turn_": "_call_"})


def downgrade() -> None:
    op.execute("DELETE FROM executions WHERE index > 0")
    op.drop_constraint("pk_executions", "executions")
    op.drop_column("executions", "index")
    op.alter_column("executions", "call", new_column_name="turn")
    op.create_primary_key("pk_executions", "executions", ["rollout_id", "epoch", "turn"])
    op.drop_column("calls", "parent")
    op.alter_column("calls", "number", new_column_name="turn")
    op.rename_table("calls", "generations")
    _rename_constraints("generations", {"calls": "generations", "_number_": "_turn_"})
    _rename_constraints("executions", {"_call_": "_turn_"})


def _rename_constraints(table: str, words: dict[str, str]) -> None:
    """Constraints carry the names that tables and columns had when they were made; Postgres 18
    names those of NOT NULL, too."""
    names = op.get_bind().scalars(
        sa.text("SELECT conname FROM pg_constraint WHERE conrelid = CAST(:table AS regclass)"),
        {"table": table},
    )
    for before in list(names):
        after = before
        for old, new in words.items():
            after = after.replace(old, new)
        if after != before:
            op.execute(f"ALTER TABLE {table} RENAME CONSTRAINT {before} TO {after}")
