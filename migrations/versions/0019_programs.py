"""Rollouts that a program plays: its lives, its requests, and how they end."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_BEFORE = (
    "'submitted', 'step_limit', 'format_errors', 'context_full', 'wall_time', 'cancelled', "
    "'infra_fault', 'terminated', 'given'"
)
_NOW = sa.text("now()")
_TIME = sa.TIMESTAMP(timezone=True)


def upgrade() -> None:
    _stop_reasons(f"{_BEFORE}, 'exited', 'request_rate'")
    op.create_table(
        "program_lives",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("life", sa.Integer(), nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("returncode", sa.Integer()),
        sa.Column("output", sa.Text()),
        sa.Column("started_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("ended_at", _TIME),
        sa.PrimaryKeyConstraint("rollout_id", "epoch", "life", name=op.f("pk_program_lives")),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_program_lives_rollout_id")
        ),
    )
    op.create_index(op.f("ix_program_lives_key_hash"), "program_lives", ["key_hash"])
    op.create_table(
        "model_requests",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("occurrence", sa.Integer(), nullable=False),
        sa.Column("life", sa.Integer(), nullable=False),
        sa.Column("first_life", sa.Integer(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("refusal", postgresql.JSONB()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("setting", sa.Text(), nullable=False),
        sa.Column("history", sa.Text()),
        sa.Column("delivered_life", sa.Integer()),
        sa.Column("asked_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("answered_at", _TIME),
        sa.CheckConstraint(
            "dialect IN ('chat', 'responses', 'messages', 'gemini')",
            name=op.f("ck_model_requests_dialect"),
        ),
        sa.CheckConstraint(
            "state IN ('asked', 'stored', 'refused')", name=op.f("ck_model_requests_state")
        ),
        sa.CheckConstraint(
            "kind IN ('main', 'agent', 'side')", name=op.f("ck_model_requests_kind")
        ),
        sa.PrimaryKeyConstraint("rollout_id", "epoch", "number", name=op.f("pk_model_requests")),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_model_requests_rollout_id")
        ),
        sa.UniqueConstraint(
            "rollout_id",
            "epoch",
            "key",
            "occurrence",
            name=op.f("uq_model_requests_rollout_id_epoch_key_occurrence"),
        ),
    )


def downgrade() -> None:
    op.drop_table("model_requests")
    op.drop_table("program_lives")
    for reason, before in (("exited", "submitted"), ("request_rate", "step_limit")):
        op.execute(f"UPDATE rollouts SET stop_reason = '{before}' WHERE stop_reason = '{reason}'")
    _stop_reasons(_BEFORE)


def _stop_reasons(words: str) -> None:
    op.drop_constraint(op.f("ck_rollouts_stop_reason"), "rollouts", type_="check")
    op.create_check_constraint(
        op.f("ck_rollouts_stop_reason"), "rollouts", f"stop_reason IN ({words})"
    )
