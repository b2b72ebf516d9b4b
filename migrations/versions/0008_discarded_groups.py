"""Groups that teach nothing are flat, and groups that an operator discarded have a note."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_BEFORE = "status IN ('running', 'ready', 'consumed', 'masked', 'cancelled')"
_AFTER = "status IN ('running', 'ready', 'consumed', 'masked', 'flat', 'cancelled')"


def upgrade() -> None:
    op.add_column("groups", sa.Column("note", sa.Text()))
    op.drop_constraint(op.f("ck_groups_status"), "groups", type_="check")
    op.create_check_constraint(op.f("ck_groups_status"), "groups", _AFTER)


def downgrade() -> None:
    op.execute("UPDATE groups SET status = 'masked' WHERE status = 'flat'")
    op.drop_constraint(op.f("ck_groups_status"), "groups", type_="check")
    op.create_check_constraint(op.f("ck_groups_status"), "groups", _BEFORE)
    op.drop_column("groups", "note")
