"""The store: campaigns, tasks, policies, groups, rollouts, turns, sandboxes and steps."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "campaigns",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("config", postgresql.JSONB(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("finished_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('created', 'warming_up', 'running', 'paused', 'finished', 'cancelled', "
            "'failed')",
            name=op.f("ck_campaigns_status"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_campaigns")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=False),
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint(
            "source", "split", "position", name=op.f("uq_tasks_source_split_position")
        ),
    )
    op.create_table(
        "groups",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=True),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("sampling", sa.Text(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("finished_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("kind IN ('train', 'eval')", name=op.f("ck_groups_kind")),
        sa.CheckConstraint(
            "status IN ('running', 'ready', 'consumed', 'masked', 'cancelled')",
            name=op.f("ck_groups_status"),
        ),
        sa.CheckConstraint("sampling IN ('sampled', 'greedy')", name=op.f("ck_groups_sampling")),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_groups_campaign_id")
        ),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_groups_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
        sa.UniqueConstraint("campaign_id", "index", name=op.f("uq_groups_campaign_id_index")),
    )
    op.create_index(
        op.f("ix_groups_campaign_id_kind_status"), "groups", ["campaign_id", "kind", "status"]
    )
    op.create_table(
        "policy_versions",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=True),
        sa.Column("logprob_gap_max", sa.Double(), nullable=True),
        sa.Column("num_gap_tokens", sa.Integer(), nullable=True),
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_policy_versions_campaign_id")
        ),
        sa.PrimaryKeyConstraint("campaign_id", "version", name=op.f("pk_policy_versions")),
    )
    op.create_table(
        "steps",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("policy_version_before", sa.Integer(), nullable=False),
        sa.Column("metrics", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column(
            "planned_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("finished_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("status IN ('planned', 'done')", name=op.f("ck_steps_status")),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_steps_campaign_id")
        ),
        sa.PrimaryKeyConstraint("campaign_id", "step", name=op.f("pk_steps")),
    )
    op.create_table(
        "rollouts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("sample_index", sa.Integer(), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("past_runs", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("patch", sa.LargeBinary(), nullable=True),
        sa.Column("grade_output", sa.Text(), nullable=True),
        sa.Column("num_turns", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("phase_s", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("started_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("finished_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint(
            "phase IN ('starting', 'opening', 'running', 'restoring', 'grading', 'done')",
            name=op.f("ck_rollouts_phase"),
        ),
        sa.CheckConstraint(
            "stop_reason IN ('submitted', 'step_limit', 'format_errors', 'context_full', "
            "'wall_time', 'cancelled', 'infra_fault')",
            name=op.f("ck_rollouts_stop_reason"),
        ),
        sa.CheckConstraint(
            "verdict IN ('resolved', 'not_resolved', 'no_patch', 'patch_failed', "
            "'tests_timed_out', 'fault')",
            name=op.f("ck_rollouts_verdict"),
        ),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_rollouts_campaign_id")
        ),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_rollouts_group_id")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_rollouts_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
        sa.UniqueConstraint(
            "group_id", "sample_index", name=op.f("uq_rollouts_group_id_sample_index")
        ),
    )
    op.create_index(op.f("ix_rollouts_campaign_id_phase"), "rollouts", ["campaign_id", "phase"])
    op.create_table(
        "step_groups",
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["campaign_id", "step"],
            ["steps.campaign_id", "steps.step"],
            name=op.f("fk_step_groups_campaign_id_step"),
        ),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_step_groups_group_id")),
        sa.PrimaryKeyConstraint("group_id", name=op.f("pk_step_groups")),
        sa.UniqueConstraint(
            "campaign_id", "step", "position", name=op.f("uq_step_groups_campaign_id_step_position")
        ),
    )
    op.create_table(
        "executions",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("turn", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("returncode", sa.Integer(), nullable=True),
        sa.Column("output", sa.LargeBinary(), nullable=True),
        sa.Column("output_sha256", sa.Text(), nullable=True),
        sa.Column("truncated", sa.Boolean(), nullable=True),
        sa.Column("timed_out", sa.Boolean(), nullable=True),
        sa.Column("wall_s", sa.Double(), nullable=True),
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("finished_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('intent', 'done')", name=op.f("ck_executions_state")),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_executions_rollout_id")
        ),
        sa.PrimaryKeyConstraint("rollout_id", "epoch", "turn", name=op.f("pk_executions")),
    )
    op.create_table(
        "generations",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("turn", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("prompt_start", sa.Integer(), nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("completion_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("spans", postgresql.JSONB(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("latency_s", sa.Double(), nullable=False),
        sa.Column(
            "created_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_generations_rollout_id")
        ),
        sa.PrimaryKeyConstraint("rollout_id", "epoch", "turn", name=op.f("pk_generations")),
    )
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column(
            "opened_at",
            sa.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("closed_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("purpose IN ('agent', 'grade')", name=op.f("ck_sandboxes_purpose")),
        sa.CheckConstraint("backend IN ('docker', 'bwrap')", name=op.f("ck_sandboxes_backend")),
        sa.CheckConstraint(
            "status IN ('open', 'closed', 'lost', 'reaped')", name=op.f("ck_sandboxes_status")
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_sandboxes_rollout_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sandboxes")),
    )
    op.create_index(op.f("ix_sandboxes_node_status"), "sandboxes", ["node", "status"])
    op.create_index(op.f("ix_sandboxes_rollout_id"), "sandboxes", ["rollout_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_sandboxes_rollout_id"), table_name="sandboxes")
    op.drop_index(op.f("ix_sandboxes_node_status"), table_name="sandboxes")
    op.drop_table("sandboxes")
    op.drop_table("generations")
    op.drop_table("executions")
    op.drop_table("step_groups")
    op.drop_index(op.f("ix_rollouts_campaign_id_phase"), table_name="rollouts")
    op.drop_table("rollouts")
    op.drop_table("steps")
    op.drop_table("policy_versions")
    op.drop_index(op.f("ix_groups_campaign_id_kind_status"), table_name="groups")
    op.drop_table("groups")
    op.drop_table("tasks")
    op.drop_table("campaigns")
