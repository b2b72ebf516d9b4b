"""A campaign's configuration: TOML in, a checked model out, without any heavy import.

Invariants: unknown keys are refused; every bound stands on its field; an error names the file and
the field. The checked model is stored as JSON with the campaign, so a resumed campaign never
depends on the file again.
"""

import re
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mainspring.algorithms.gap import Dtype, GapBounds, GapConfig, bounds
from mainspring.config import errors
from mainspring.config.model_path import with_model_path
from mainspring.config.optimizer import OptimizerConfig, OptimizerName, WarmStartConfig
from mainspring.config.presets import Preset, expanded
from mainspring.config.section import Section
from mainspring.errors import ConfigError, UsageError
from mainspring.ids import campaign_id
from mainspring.integrity.exploits import check_exploits
from mainspring.status import Player, PolicyApi, Unverified

BUNDLED = "bundled"
"""The generated task family, and the tiny model made for it."""
STORED = {"stored": True}
"""Validation context of configurations that were accepted before: newer refusals spare them."""


class TasksConfig(Section):
    source: str = BUNDLED
    """"bundled" for the generated tasks, else the name of an imported task source."""
    num_train: int = Field(default=2048, ge=1)
    """Size of the train split (bundled tasks only)."""
    num_heldout: int = Field(default=128, ge=1)
    """Size of the held-out split: fresh instances of the training templates."""
    num_heldout_templates: int = Field(default=64, ge=0)
    """Size of the held-out split made of templates that never occur in training."""
    unverified: Unverified = Unverified.SKIP
    """What to do with tasks that are not verified (bundled ones need no verification)."""


class RewardPart(Section):
    name: str
    """A registered part, or a function of your own as "package.module:function"."""
    weight: float = 1.0
    """Parts are added up with their weights."""
    options: dict[str, float] = Field(default_factory=dict)
    """Numbers that the part takes; an unknown one is refused."""


class RewardConfig(Section):
    parts: tuple[RewardPart, ...] = Field(default=(RewardPart(name="outcome"),), min_length=1)
    """What a rollout's reward is made of; each part's value is stored with it."""


class AgentConfig(Section):
    preset: Preset | None = None
    """Limits of another program, for figures that compare; fields given beside it win."""
    step_limit: int = Field(default=20, ge=1, le=500)
    """Turns a rollout may take."""
    max_format_errors: int = Field(default=3, ge=1)
    """Replies in a row without exactly one bash block before the rollout ends."""
    command_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Wall time of one command; then its whole process group is killed."""
    observation_chars: int = Field(default=10_000, ge=200)
    """Longer outputs are shown as head and tail of half this size."""
    rollout_timeout_s: float = Field(default=1800.0, gt=0)
    """Time that a rollout's replies and commands may take together; then what the tree holds is
    graded. Waiting for an engine, a node or a retry does not count."""
    kind: str = "bash"
    """The agent: "bash", "bundled" (its prompts are short, for the bundled model), or a class of
    your own as "package.module:Class". A task's own `agent_name` comes first."""


class PolicyConfig(Section):
    api: PolicyApi = PolicyApi.SGLANG
    """What the engines speak."""
    model: str = BUNDLED
    """"bundled" (made and warm-started by the campaign), a Hugging Face model directory (absolute,
    or relative to the campaign file), or with the OpenAI API the model's name there."""
    engines: tuple[str, ...] = Field(default=("http://127.0.0.1:30000",), min_length=1)
    """Base URLs of the engines. Port 0 lets `mainspring train` take a free one."""
    dtype: Dtype = Dtype.FLOAT32
    """What the engines compute in; the bounds of [trainer.gap] follow it."""
    max_context: int = Field(default=32_768, ge=64)
    """Prompt plus reply never exceed this many tokens."""
    max_new_tokens: int = Field(default=4096, ge=1)
    """Longest reply of one turn."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """For training rollouts; greedy evaluations use 0."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """For one reply; then it is asked for again."""

    @field_validator("engines")
    @classmethod
    def _urls(cls, engines: tuple[str, ...]) -> tuple[str, ...]:
        for url in engines:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is not an http(s) URL")
        return tuple(url.rstrip("/") for url in engines)

    @model_validator(mode="after")
    def _room_for_a_prompt(self) -> Self:
        if self.max_new_tokens >= self.max_context:
            raise ValueError("max_new_tokens must be below max_context")
        return self


class Aggregation(StrEnum):
    TOKEN_MEAN = "token_mean"
    """Sum over all action tokens of the batch, divided by their number (DAPO)."""
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    """Mean over samples of each sample's token mean (the original GRPO)."""
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"
    """Mean over samples of each sample's token sum (Dr. GRPO up to a constant)."""


class Device(StrEnum):
    CUDA = "cuda"
    """One GPU for each rank; the campaign fails where there are fewer."""
    CPU = "cpu"
    """No GPU, also where there is one."""


class GroupFilter(StrEnum):
    MIXED = "mixed"
    """Only groups whose rewards differ; others teach nothing and are replaced."""
    NONE = "none"
    """All groups with enough scored rollouts."""


class TrainerConfig(Section):
    num_steps: int = Field(default=100, ge=1)
    """Optimizer steps of the whole campaign."""
    groups_per_step: int = Field(default=8, ge=1)
    """Groups, so tasks, in the batch of a step."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts of each task, compared with each other."""
    min_scored: int | None = Field(default=None, ge=1)
    """Scored rollouts that a group needs; with fewer it is masked and replaced. Unset: half of
    `group_size`, at least 2."""
    filter: GroupFilter = GroupFilter.MIXED
    """Which groups a step may use."""
    max_flat_groups: int | None = Field(default=None, ge=1)
    """Groups in a row with equal rewards before the campaign fails. Unset: 20 for each group of a
    step."""
    updates_per_step: int = Field(default=1, ge=1)
    """Passes over a step's batch, an optimizer update each (PPO's epochs); the clip bounds them."""
    max_staleness: int = Field(default=1, ge=0)
    """Steps that groups in flight and ready may be ahead of training, which bounds how many there
    are: 0 waits for each step, 1 overlaps with it. It does not bound the age of a token."""
    max_token_staleness: int | None = Field(default=None, ge=0)
    """Older tokens, in policy versions, are kept as context and masked from the loss; unset: none
    are."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation (off: Dr. GRPO)."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The probability ratio is clipped below at 1 - this."""
    clip_high: float = Field(default=0.28, gt=0)
    """Asymmetric PPO clip ("clip higher", DAPO)."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """How losses of tokens become one number."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    micro_batch_tokens: int = Field(default=8192, ge=64)
    """Token budget of one packed micro-batch."""
    optimizer: OptimizerConfig = OptimizerConfig()
    warm_start: WarmStartConfig | None = None
    device: Device = Device.CUDA
    """Where the ranks compute."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks that share one copy of the model."""
    data_parallel: int = Field(default=1, ge=1)
    """Copies of the model that share a batch."""
    threads_per_rank: int = Field(default=1, ge=1)
    """OMP threads of each rank on CPU."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept on disk."""
    gap: GapConfig = GapConfig()

    @property
    def flat_groups_bound(self) -> int:
        return self.max_flat_groups or 20 * self.groups_per_step

    @model_validator(mode="after")
    def _enough_can_be_scored(self) -> Self:
        if (self.min_scored or 0) > self.group_size:
            raise ValueError(
                f"min_scored = {self.min_scored} is more than group_size = {self.group_size}"
            )
        return self

    @model_validator(mode="after")
    def _muon_is_not_sharded(self) -> Self:
        if self.optimizer.name is OptimizerName.MUON and self.tensor_parallel > 1:
            raise ValueError(
                "optimizer.name = 'muon' orthogonalises whole matrices: set tensor_parallel = 1"
            )
        return self


class EvalConfig(Section):
    every_steps: int = Field(default=20, ge=1)
    """Number of steps between two evaluations; also before the first step and after the last."""
    splits: tuple[str, ...] = ("heldout",)
    """Splits for the first and the last evaluation; in between only the first one, sampled."""
    greedy: bool = True
    """Also at temperature 0, before and after."""
    greedy_tasks: int | None = Field(default=None, ge=1)
    """Number of tasks, from the start of the split, that are played greedily; unset: all."""
    concurrency: int = Field(default=32, ge=1)
    """Rollouts of one evaluation in flight at once."""


MAX_SAMPLES = 250
"""With gold and empty patches half of the rollouts that a group holds."""
_SLICE = re.compile(r"(\d*):(\d*)")


class RunConfig(Section):
    """What an evaluation, a verification or a regrade goes over."""

    split: str = "test"
    """Split of the tasks."""
    slice: str = ""
    """Only these tasks of the split, as "0:5" or "100:", in listing order; empty: all."""
    samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    """Rollouts of each task; in a verification, of each task and kind of patch."""
    players: tuple[Player, ...] = Field(default=(Player.GOLD, Player.EMPTY), min_length=1)
    """Whose patches a verification grades: "gold" and "empty", or "exploit" alone."""
    exploits: tuple[str, ...] = Field(default=(), max_length=400)
    """Known exploits that a verification tries on each task, by name, with players ["exploit"]."""
    of: str = ""
    """The campaign whose patches a regrade grades again."""

    @field_validator("slice")
    @classmethod
    def _two_numbers(cls, text: str) -> str:
        if text and not _SLICE.fullmatch(text):
            raise ValueError(f"{text!r} is not a slice: write two positions, as in 0:5 or 100:")
        return text

    @model_validator(mode="after")
    def _given(self) -> Self:
        if Player.EXPLOIT in self.players:
            if self.players != (Player.EXPLOIT,) or not self.exploits or self.samples > 1:
                raise ValueError("exploits are tried alone, by name, and once each")
            check_exploits(self.exploits)
        elif not set(self.players) <= {Player.GOLD, Player.EMPTY}:
            raise ValueError("a verification grades gold and empty patches, or exploits")
        return self

    @property
    def bounds(self) -> tuple[int, int | None]:
        """First position, and the one after the last."""
        first, _, end = self.slice.partition(":")
        return int(first or 0), int(end) if end else None


class SandboxConfig(Section):
    memory_mb: int = Field(default=1024, ge=16)
    """Memory of one sandbox."""
    max_pids: int = Field(default=256, ge=4)
    """Processes and threads alive at once in one sandbox."""
    cpus: float = Field(default=1.0, gt=0)
    """Cores one sandbox may use, where the backend can limit them."""
    disk_mb: int = Field(default=2048, ge=1)
    """Disk one sandbox may fill, where the backend can limit it."""
    output_bytes: int = Field(default=1 << 20, ge=1024)
    """Most that is kept of one command's output."""
    max_open: int | None = Field(default=None, ge=1)
    """Sandboxes of this campaign alive at once over all nodes; unset: as many as the nodes hold."""
    snapshot_every_turns: int | None = Field(default=None, ge=1)
    """Number of turns between two snapshots of a sandbox's files. A lost sandbox is rebuilt from
    the newest one, and only later commands run again; unset: all run again."""
    snapshot_mb: int = Field(default=16, ge=1, le=30)
    """Most one rollout's kept files may hold, compressed. Larger ones are not kept."""


class CampaignConfig(Section):
    name: Annotated[str, Field(min_length=1)]
    """Its id, in every id made of it: a-z, 0-9 and '-', at most 48."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of tasks, model, order and sampling."""
    tasks: TasksConfig = TasksConfig()
    agent: AgentConfig = AgentConfig()
    policy: PolicyConfig = PolicyConfig()
    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvalConfig = EvalConfig()
    sandbox: SandboxConfig = SandboxConfig()
    reward: RewardConfig = RewardConfig()
    run: RunConfig = RunConfig()

    @field_validator("name")
    @classmethod
    def _name_is_an_id(cls, name: str) -> str:
        try:
            return campaign_id(name)
        except UsageError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _bundled_model_needs_a_warm_start(self) -> Self:
        if self.policy.model == BUNDLED and self.trainer.warm_start is None:
            raise ValueError(
                "policy.model = 'bundled' starts from random weights: add [trainer.warm_start]"
            )
        return self

    @model_validator(mode="after")
    def _warm_start_is_for_the_bundled_model(self, info: ValidationInfo) -> Self:
        bundled = self.policy.model == BUNDLED
        if self.trainer.warm_start is not None and not bundled and info.context != STORED:
            raise ValueError(
                f"[trainer.warm_start] would train {self.policy.model!r} on the bundled toy tasks: "
                "remove the section, or set policy.model = 'bundled'"
            )
        return self

    @property
    def gap_bounds(self) -> GapBounds:
        """Of [trainer.gap], with the defaults of the engines' dtype."""
        return bounds(self.trainer.gap, self.policy.dtype)

    @property
    def task_source(self) -> str:
        """Where the campaign's tasks are listed in the store; bundled ones depend on the seed."""
        bundled = self.tasks.source == BUNDLED
        return f"{BUNDLED}-s{self.seed}" if bundled else self.tasks.source

    def split_size(self, split: str) -> int | None:
        """How many tasks of `split` the campaign uses; None: all of them."""
        if self.tasks.source != BUNDLED:
            return None
        return {
            "train": self.tasks.num_train,
            "heldout": self.tasks.num_heldout,
            "heldout_templates": self.tasks.num_heldout_templates,
        }.get(split, 0)


def load_campaign(path: Path) -> CampaignConfig:
    """Read a campaign file. Raises ConfigError naming the file and each wrong field."""
    return check_campaign(with_model_path(read_toml(path), path), str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", remedy="give the path of a TOML file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not TOML: {error}", remedy="save the file as UTF-8 text"
        ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}: not TOML: {errors.syntax_lines(error, text)}",
            remedy='write key = value: text in quotes ("..."), lists as [1, 2], sections as [name]',
        ) from None


def check_campaign(
    raw: dict[str, Any], where: str, named: Mapping[str, str] = MappingProxyType({})
) -> CampaignConfig:
    """Raises ConfigError naming `where` and each wrong field; `named` gives what a field is called
    there."""
    try:
        return CampaignConfig.model_validate(expanded(raw))
    except ValidationError as error:
        lines = errors.explain(error, CampaignConfig, named)
        raise ConfigError(
            "\n".join(f"{where}: {line}" for line in lines),
            remedy="see docs/campaign.md for every field and its bounds",
        ) from None
