"""The tables, as typed declarative models. Every change here needs a migration; a test compares.

Held by the schema: one row per (rollout, epoch, turn); a group is in at most one step of a
campaign; a status is one of its enum's words. Imported by `infra.db` and migrations alone: rows
never leave `infra.db`.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    UniqueConstraint,
    false,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

# Not used here: a table that is not imported is missing in the metadata.
from infra.db.tables import change_rows as change_rows
from infra.db.tables import cross_test_rows as cross_test_rows
from infra.db.tables import engine_rows as engine_rows
from infra.db.tables import event_rows as event_rows
from infra.db.tables import judgement_rows as judgement_rows
from infra.db.tables import label_rows as label_rows
from infra.db.tables import lease_rows as lease_rows
from infra.db.tables import program_rows as program_rows
from infra.db.tables import search_rows as search_rows
from infra.db.tables import session_rows as session_rows
from infra.db.tables import sft_rows as sft_rows
from infra.db.tables import step_detail_rows as step_detail_rows
from infra.db.tables import store_rows as store_rows
from infra.db.tables.base import Base
from infra.db.tables.columns import PlainText, word
from mainspring.programs.reply import Reply
from mainspring.programs.request import ModelRequest
from mainspring.status import (
    CampaignKind,
    CampaignStatus,
    Exclusion,
    ExecutionState,
    GroupKind,
    GroupStatus,
    Incomplete,
    NodeRefusal,
    Player,
    RolloutPhase,
    Sampling,
    SandboxPurpose,
    SandboxStatus,
    StepStatus,
    StopReason,
    Verdict,
    Verification,
)
from mainspring.trajectories.turns import VersionSpan


class CampaignRow(Base):
    __tablename__ = "campaigns"

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[CampaignKind] = word("kind", CampaignKind, default=CampaignKind.TRAIN)
    uid: Mapped[str] = mapped_column(server_default=text("(gen_random_uuid())::text"))
    """Tells it from another campaign of this name, in another store or another time."""
    config: Mapped[dict[str, Any]]
    status: Mapped[CampaignStatus] = word("status", CampaignStatus)
    error: Mapped[str | None] = mapped_column(PlainText)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]
    incomplete: Mapped[Incomplete | None] = word("incomplete", Incomplete)
    """Why its rows are not all there; null: they are."""
    parent: Mapped[dict[str, Any] | None]
    """The campaign and policy version that it was forked or retrained from; null: it was not."""


class TaskRow(Base):
    __tablename__ = "tasks"
    __table_args__ = (UniqueConstraint("source", "split", "position"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str]
    split: Mapped[str]
    position: Mapped[int]
    content_hash: Mapped[str]
    spec: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SelectionRow(Base):
    """Which tasks a campaign uses, decided when it is created."""

    __tablename__ = "selections"
    __table_args__ = (UniqueConstraint("campaign_id", "split", "position"),)

    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"), primary_key=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    split: Mapped[str]
    position: Mapped[int | None]
    """None: the task is excluded."""
    verification: Mapped[Verification | None] = word("verification", Verification)
    """Verification as known then; None: not asked."""
    exclusion: Mapped[Exclusion | None] = word("exclusion", Exclusion)
    """None: it is used, or was excluded by its verification before this column was there."""


class PolicyVersionRow(Base):
    __tablename__ = "policy_versions"

    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    uid: Mapped[str] = mapped_column(
        server_default=text("substr(md5((gen_random_uuid())::text), 1, 12)")
    )
    """Random: tells these weights from discarded ones of the same number."""
    step: Mapped[int | None]
    path: Mapped[str]
    checkpoint: Mapped[str | None]
    logprob_gap_max: Mapped[float | None]
    """Served against recomputed log-probs under these very weights."""
    num_gap_tokens: Mapped[int | None]
    fingerprint: Mapped[dict[str, Any] | None]
    """SHA-256 of these weights and of what made them; null: not recorded."""
    stamp: Mapped[dict[str, Any] | None]
    """Facts that decide bits beside the data: library versions, CPU, sizes; null: not recorded."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class GroupRow(Base):
    __tablename__ = "groups"
    __table_args__ = (
        UniqueConstraint("campaign_id", "index"),
        Index(None, "campaign_id", "kind", "status"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"))
    kind: Mapped[GroupKind] = word("kind", GroupKind)
    index: Mapped[int | None]
    task_id: Mapped[str | None] = mapped_column(ForeignKey("tasks.id"))
    policy_version: Mapped[int]
    size: Mapped[int]
    status: Mapped[GroupStatus] = word("status", GroupStatus)
    sampling: Mapped[Sampling] = word("sampling", Sampling)
    split: Mapped[str]
    draw: Mapped[int | None]
    """Which draw of the campaign's tasks it is (schedule "reproducible"); null: its index."""
    note: Mapped[str | None]
    """Why an operator discarded it."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]


class RolloutRow(Base):
    __tablename__ = "rollouts"
    __table_args__ = (
        UniqueConstraint("group_id", "sample_index"),
        Index(None, "campaign_id", "phase"),
        Index(None, "campaign_id", "finished_at"),
        Index(
            "ix_rollouts_newest",
            "campaign_id",
            text("created_at DESC"),
            "group_id",
            "sample_index",
        ),
        Index("ix_rollouts_playing", "started_at", postgresql_where=text("phase <> 'done'")),
        Index(
            "ix_rollouts_unsearched",
            "finished_at",
            postgresql_where=text("phase = 'done' AND searched_epoch IS DISTINCT FROM epoch"),
        ),
        Index("ix_rollouts_given", "task_id", postgresql_where=text("player <> 'policy'")),
        Index(
            "ix_rollouts_source",
            "source_rollout_id",
            postgresql_where=text("source_rollout_id IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.id"))
    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"))
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"))
    sample_index: Mapped[int]
    player: Mapped[Player] = word("player", Player, default=Player.POLICY)
    source_rollout_id: Mapped[str | None] = mapped_column(ForeignKey("rollouts.id"))
    """Whose patch is graded again (player "stored")."""
    exploit: Mapped[str | None]
    """Name of the exploit that was tried (player "exploit")."""
    temperature: Mapped[float]
    seed: Mapped[int | None]
    """Seed of its sampling; null: none is sent."""
    phase: Mapped[RolloutPhase] = word("phase", RolloutPhase)
    epoch: Mapped[int] = mapped_column(server_default=text("0"))
    run_id: Mapped[str | None]
    past_runs: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))
    """Runs that were fenced off: a late attempt of one must not take the rollout back."""
    stop_reason: Mapped[StopReason | None] = word("stop_reason", StopReason)
    verdict: Mapped[Verdict | None] = word("verdict", Verdict)
    reward: Mapped[float | None]
    reward_parts: Mapped[dict[str, float | None] | None]
    """Value of each part of the campaign's reward, before weights."""
    turn_rewards: Mapped[dict[str, Any] | None]
    """Rewards of its turns, and the rest of the reward, for its end; null: turns are given none."""
    suspicions: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))
    fault: Mapped[str | None] = mapped_column(PlainText)
    patch: Mapped[bytes | None]
    patch_note: Mapped[str | None] = mapped_column(PlainText)
    """Note of what the patch lacks, or why there is none."""
    grade_output: Mapped[str | None] = mapped_column(PlainText)
    grade_report: Mapped[dict[str, Any] | None]
    num_turns: Mapped[int] = mapped_column(server_default=text("0"))
    num_sampled_tokens: Mapped[int | None]
    """Tokens sampled in its epoch; null: it has not ended, or an older program ended it."""
    searched_epoch: Mapped[int | None]
    """Epoch whose words are in `search_pieces`; null: of none. An archive never has it."""
    phase_s: Mapped[dict[str, float | None]] = mapped_column(server_default=text("'{}'"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class CallRow(Base):
    __tablename__ = "calls"

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    parent: Mapped[int | None]
    """The call whose tokens it extends; null: it begins a branch."""
    prompt_start: Mapped[int]
    prompt_ids: Mapped[tuple[int, ...]]
    completion_ids: Mapped[tuple[int, ...]]
    logprobs: Mapped[tuple[float, ...]]
    spans: Mapped[tuple[VersionSpan, ...]]
    text: Mapped[str] = mapped_column(PlainText)
    finish_reason: Mapped[str]
    latency_s: Mapped[float]
    num_prompt_tokens: Mapped[int | None]
    num_completion_tokens: Mapped[int | None]
    parts: Mapped[Reply | None]
    """Parts of an endpoint's reply to a program, or of a reply to an agent that offered tools."""
    rewritten: Mapped[ModelRequest | None]
    """An agent's request, where its context was rewritten for it."""
    is_summary: Mapped[bool] = mapped_column(server_default=false())
    """Whether `rewritten` asked for a summary of the turns before."""
    engine: Mapped[str] = mapped_column(PlainText, server_default="")
    """Name of the engine that gave its last token; empty: not known."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class PartialCallRow(Base):
    """A part of a reply while it is generated."""

    __tablename__ = "partial_calls"

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sampling: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Which parts belong together: of another one, tokens may differ from position 0 on."""
    start: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Position in the reply of its first token."""
    completion_ids: Mapped[tuple[int, ...]]
    logprobs: Mapped[tuple[float, ...]]
    spans: Mapped[tuple[VersionSpan, ...]]
    """Positions in the reply."""
    latency_s: Mapped[float]
    """Seconds that the whole reply took so far."""
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ExecutionRow(Base):
    __tablename__ = "executions"

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    call: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    command: Mapped[str] = mapped_column(PlainText)
    state: Mapped[ExecutionState] = word("state", ExecutionState)
    returncode: Mapped[int | None]
    output: Mapped[bytes | None]
    output_sha256: Mapped[str | None]
    truncated: Mapped[bool | None]
    timed_out: Mapped[bool | None]
    wall_s: Mapped[float | None]
    reward: Mapped[float | None]
    is_over: Mapped[bool] = mapped_column(server_default=text("false"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]


class SnapshotRow(Base):
    __tablename__ = "snapshots"

    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    epoch: Mapped[int]
    num_turns: Mapped[int]
    data: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SandboxRow(Base):
    __tablename__ = "sandboxes"
    __table_args__ = (
        Index(None, "node", "status"),
        Index(None, "rollout_id"),
        Index("ix_sandboxes_open", "rollout_id", postgresql_where=text("status = 'open'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"))
    epoch: Mapped[int]
    purpose: Mapped[SandboxPurpose] = word("purpose", SandboxPurpose)
    node: Mapped[str]
    backend: Mapped[str]
    """A name or a path of your own: what the node's next process finds it by."""
    status: Mapped[SandboxStatus] = word("status", SandboxStatus)
    opened_at: Mapped[datetime] = mapped_column(server_default=func.now())
    closed_at: Mapped[datetime | None]
    outlives_rollout: Mapped[bool] = mapped_column(server_default=false())
    """For tests that other rollouts wrote: it lives until the run has ended."""


class NodeRow(Base):
    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(primary_key=True)
    capacity: Mapped[int]
    num_open: Mapped[int]
    refusal: Mapped[NodeRefusal | None] = word("refusal", NodeRefusal)
    draining: Mapped[bool] = mapped_column(server_default=text("false"))
    backends: Mapped[list[str]]
    images: Mapped[list[str]]
    disk_free_mb: Mapped[int]
    memory_free_mb: Mapped[int]
    clock: Mapped[datetime | None]
    """Time by its own clock at `seen_at`; null: it has not told."""
    version: Mapped[str]
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    stopped_at: Mapped[datetime | None]
    """When its process ended in order; None: it runs, or was lost."""


class StepRow(Base):
    __tablename__ = "steps"

    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    status: Mapped[StepStatus] = word("status", StepStatus)
    policy_version_before: Mapped[int]
    metrics: Mapped[dict[str, float | None]] = mapped_column(server_default=text("'{}'"))
    planned_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]


class StepGroupRow(Base):
    __tablename__ = "step_groups"
    __table_args__ = (
        UniqueConstraint("campaign_id", "step", "position"),
        ForeignKeyConstraint(["campaign_id", "step"], ["steps.campaign_id", "steps.step"]),
    )

    group_id: Mapped[str] = mapped_column(ForeignKey("groups.id"), primary_key=True)
    """The primary key: a group is in one step of a campaign, whatever the code above does."""
    campaign_id: Mapped[str] = mapped_column(primary_key=True)
    """Its own campaign, or one that trains its batch again."""
    step: Mapped[int]
    position: Mapped[int]
