"""Campaigns that train another one's batches again: a group is in one step of each campaign."""

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_KEY = "pk_step_groups"


def upgrade() -> None:
    op.drop_constraint(_KEY, "step_groups", type_="primary")
    op.create_primary_key(_KEY, "step_groups", ["group_id", "campaign_id"])


def downgrade() -> None:
    op.execute(
        "DELETE FROM step_groups USING groups WHERE groups.id = step_groups.group_id "
        "AND groups.campaign_id <> step_groups.campaign_id"
    )
    op.drop_constraint(_KEY, "step_groups", type_="primary")
    op.create_primary_key(_KEY, "step_groups", ["group_id"])
