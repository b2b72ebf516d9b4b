"""A sandbox's backend is a name, also the path of a class outside Mainspring."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_constraint(op.f("ck_sandboxes_backend"), "sandboxes", type_="check")


def downgrade() -> None:
    # Earlier versions know two backends and cannot remove what another one made.
    op.execute(sa.text("UPDATE sandboxes SET backend = 'bwrap' WHERE backend <> 'docker'"))
    op.create_check_constraint(
        op.f("ck_sandboxes_backend"), "sandboxes", "backend IN ('docker', 'bwrap')"
    )
