"""Replies under way are stored in parts."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_CALL = ["rollout_id", "epoch", "number"]


def upgrade() -> None:
    # What is stored is a part that begins at 0, of one sampling.
    for name, kind in (("sampling", sa.BigInteger()), ("start", sa.Integer())):
        op.add_column("partial_calls", sa.Column(name, kind, nullable=False, server_default="0"))
        op.alter_column("partial_calls", name, server_default=None)
    _set_key([*_CALL, "sampling", "start"])


def downgrade() -> None:
    # Beginnings are a precaution: without them a reply under way is generated again.
    op.execute("DELETE FROM partial_calls")
    _set_key(_CALL)
    op.drop_column("partial_calls", "start")
    op.drop_column("partial_calls", "sampling")


def _set_key(columns: list[str]) -> None:
    op.drop_constraint(op.f("pk_partial_calls"), "partial_calls", type_="primary")
    op.create_primary_key(op.f("pk_partial_calls"), "partial_calls", columns)
