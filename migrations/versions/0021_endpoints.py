"""Programs that an endpoint answers: their replies, taken apart, and how often each was asked.

Partial replies are kept for each call: a program has several under way at once.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_KEY = ["rollout_id", "epoch", "number"]


def upgrade() -> None:
    op.add_column("calls", sa.Column("parts", sa.Text()))
    op.add_column(
        "model_requests",
        sa.Column("num_sent", sa.Integer(), server_default=sa.text("0"), nullable=False),
    )
    op.drop_constraint(op.f("pk_partial_calls"), "partial_calls", type_="primary")
    op.create_primary_key(op.f("pk_partial_calls"), "partial_calls", _KEY)


def downgrade() -> None:
    # A precaution: without them replies under way are generated anew.
    op.execute("DELETE FROM partial_calls")
    op.drop_constraint(op.f("pk_partial_calls"), "partial_calls", type_="primary")
    op.create_primary_key(op.f("pk_partial_calls"), "partial_calls", ["rollout_id"])
    op.drop_column("model_requests", "num_sent")
    op.drop_column("calls", "parts")
