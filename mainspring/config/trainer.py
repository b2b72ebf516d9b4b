"""Section [trainer]: steps and batches; `algorithm` and `parallel` hold its other keys."""

from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, model_validator

from mainspring.algorithms.gap import GapConfig
from mainspring.config.section import (
    LARGE,
    MANY,
    MANY_TOKENS,
    YEAR_S,
    Added,
    Counts,
    Switch,
    Within,
)
from mainspring.config.training.algorithm import AlgorithmConfig
from mainspring.config.training.method_defaults import LORA_LR, filled
from mainspring.config.training.optimizer import OptimizerConfig, WarmStartConfig
from mainspring.config.training.parallel import MCORE, PLAIN, ParallelConfig


class TrainerConfig(AlgorithmConfig, ParallelConfig):
    num_steps: Annotated[int, Within(le=MANY), Counts.STEPS] = Field(default=100, ge=1)
    """Steps of the whole campaign."""
    groups_per_step: Annotated[int, Within(le=MANY), Counts.STEPS] = Field(default=8, ge=1)
    """Groups in the batch of a step, one task each."""
    group_size: Annotated[int, Within(le=MANY)] = Field(default=8, ge=2)
    """Rollouts in a group; their rewards are compared with each other."""
    min_scored: Annotated[int | None, Within(le=MANY), Counts.ROLLOUTS] = Field(default=None, ge=1)
    """Minimum number of scored rollouts in a group; with fewer it is masked and replaced. Unset:
    half of `group_size`, at least 2."""
    quorum: Annotated[int | None, Within(le=MANY), Counts.ROLLOUTS] = Field(default=None, ge=1)
    """Number of scored rollouts of a group after which the others of it have `straggler_s` seconds
    left; then they end after their turn and are graded as they stand, so that a step does not wait
    for the slowest. Unset: a group waits for all of its rollouts."""
    straggler_s: Annotated[float, Within(le=YEAR_S), Counts.ROLLOUTS] = Field(default=600.0, ge=0)
    """Seconds of replies and commands that are left to a rollout when `quorum` others have ended.
    Waiting for engines or nodes is not counted."""
    filter: str = "mixed"
    """Which groups a step may use; others are flat and replaced. "mixed": those whose rewards
    differ, because others teach nothing. "solved": those of which the advantage "raft" keeps a
    rollout. "none": all with enough scored rollouts. Or a function of your own as
    "package.module:function". Unset: "none" with the advantages "gae" and "reinforce_plus_plus",
    "solved" with "raft"."""
    max_flat_groups: Annotated[int | None, Within(le=MANY_TOKENS), Counts.STEPS] = Field(
        default=None, ge=1
    )
    """Number of flat groups in a row that end the campaign, and of groups that one step replaces
    because masks left nothing of them to train. Unset: 20 for each group of a step."""
    max_staleness: Annotated[int, Within(le=1000), Counts.STEPS] = Field(default=1, ge=0)
    """Number of steps that rollouts may be ahead of training: 0 waits for each step, 1 overlaps
    with it. It bounds the groups in flight and ready, not the age of a token."""
    max_token_staleness: Annotated[int | None, Within(le=MANY), Counts.STEPS] = Field(
        default=None, ge=0
    )
    """Tokens older than this number of policy versions are kept as context and masked from the
    loss. Unset: no token is masked."""
    optimizer: OptimizerConfig = OptimizerConfig()
    warm_start: WarmStartConfig | None = None
    checkpoint_every: Annotated[int, Within(le=MANY), Counts.STEPS] = Field(default=1, ge=1)
    """Number of steps from one checkpoint (weights and optimizer) to the next. Versions between
    them have weights alone; after a crash their steps are trained again from the stored batches."""
    checkpoint_in_background: Switch = False
    """Whether steps continue while a checkpoint is written (engines "mcore" and "fsdp"): a version
    is published with its weights alone, and training can resume from it once its checkpoint is on
    disk. That of the last step is waited for."""
    keep_checkpoints: Annotated[int, Within(le=MANY), Counts.AT_ONCE] = Field(default=2, ge=1)
    """Number of newest checkpoints kept on disk."""
    keep_best: Annotated[int, Within(le=MANY), Counts.AT_ONCE] = Field(default=0, ge=0)
    """Number of versions kept beside them: those that solved most tasks in evaluations."""
    colocate: Annotated[Switch, Added.SINCE] = False
    """Whether ranks and engines have the same devices in turns: while a step is trained, engines
    give their memory away and requests wait; afterwards ranks move to the host's memory, and
    engines take theirs again with the new weights. Needs the engine "fsdp" (or "plain"), and
    engines on the trainer's machine that can give memory away (SGLang with --enable-memory-saver,
    vLLM with --enable-sleep-mode, `mainspring serve`)."""
    peak_tflops: Annotated[float | None, Within(le=LARGE), Counts.AT_ONCE] = Field(
        default=None, gt=0
    )
    """Peak of one rank's device in TFLOP/s, which the metric `mfu` is a share of. Unset: known
    of usual GPUs by their names; of others, and of a CPU, `mfu` is not measured."""
    gap: Annotated[GapConfig, Counts.STEPS] = GapConfig()
    keep_recomputed: Annotated[Switch, Counts.STEPS, Added.SINCE] = False
    """Whether the log-prob that the trainer computed for each sampled token is stored with the
    step, and the entropy of each trained one: 4 bytes a token each. The viewer colours tokens by
    them. Without it the 200 tokens with the largest gap are stored."""

    @model_validator(mode="before")
    @classmethod
    def _methods_have_defaults(cls, raw: Any, info: ValidationInfo) -> Any:
        return filled(raw, info, LORA_LR)

    def has_checkpoint(self, step: int) -> bool:
        """Whether the version that `step` (from 1) makes gets a checkpoint."""
        return step % self.checkpoint_every == 0 or step == self.num_steps

    @property
    def flat_groups_bound(self) -> int:
        return self.max_flat_groups or 20 * self.groups_per_step

    @model_validator(mode="after")
    def _the_engine_writes_in_the_background(self) -> Self:
        if self.checkpoint_in_background and self.engine_name == PLAIN:
            raise ValueError(
                'the engine "plain" writes no checkpoint in the background: set engine = "mcore", '
                "or remove checkpoint_in_background"
            )
        return self

    @model_validator(mode="after")
    def _ranks_can_leave_the_devices(self) -> Self:
        if not self.colocate:
            return self
        if self.engine_name == MCORE:
            raise ValueError(
                'colocate = true needs ranks that can leave their devices, and the engine "mcore" '
                'cannot: set engine = "fsdp" (or "plain" on a CPU), or remove colocate'
            )
        if self.checkpoint_in_background:
            raise ValueError(
                "colocate = true and checkpoint_in_background = true: ranks that have left their "
                "devices write nothing; remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _a_critic_fits_the_others(self) -> Self:
        if self.critic is None:
            return self
        if self.filter in ("mixed", "solved"):
            raise ValueError(
                f'filter = "{self.filter}" replaces groups that a critic learns from as well: set '
                'filter = "none"'
            )
        if self.engine_name != MCORE:
            for name in ("pipeline_parallel", "context_parallel", "expert_parallel"):
                if getattr(self, name) > 1:
                    raise ValueError(
                        f'a critic is shared by {name} with the engine "mcore" alone: remove {name}'
                    )
            if self.sequence_parallel:
                raise ValueError(
                    'a critic is shared by sequence_parallel with the engine "mcore" alone: '
                    "remove it"
                )
        if self.checkpoint_in_background:
            raise ValueError(
                "a critic is not written in the background: remove checkpoint_in_background"
            )
        if self.critic.warmup_steps >= self.num_steps:
            raise ValueError(
                f"critic.warmup_steps = {self.critic.warmup_steps} is not below num_steps = "
                f"{self.num_steps}: the policy would never be trained"
            )
        return self

    @model_validator(mode="after")
    def _enough_can_be_scored(self) -> Self:
        if (self.min_scored or 0) > self.group_size:
            raise ValueError(
                f"min_scored = {self.min_scored} is more than group_size = {self.group_size}"
            )
        return self

    @model_validator(mode="after")
    def _a_quorum_leaves_some(self) -> Self:
        if self.quorum is not None and self.quorum >= self.group_size:
            raise ValueError(
                f"quorum = {self.quorum} is not below group_size = {self.group_size}: without it a "
                "group waits for all of its rollouts"
            )
        return self

    @model_validator(mode="after")
    def _every_mini_batch_can_have_a_rollout(self) -> Self:
        num_rollouts = self.groups_per_step * self.group_size
        if self.mini_batches > num_rollouts:
            raise ValueError(
                f"mini_batches = {self.mini_batches} is more than the {num_rollouts} rollouts of a "
                "step (groups_per_step x group_size): lower it"
            )
        return self

    @model_validator(mode="after")
    def _the_optimizer_can_move_it(self) -> Self:
        self.check_optimizer(self.optimizer)
        return self
