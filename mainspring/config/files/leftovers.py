"""Settings of a campaign that nothing reads: changed from their default, without what they belong
to.

Owns the table of which setting belongs to which other. A part of one's own may read any setting of
its section. Pure; imported by `pairs` and `agent_pairs`, which have the other settings that mean
nothing together.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from pydantic import BaseModel

from mainspring.config.agents.agent import AgentConfig
from mainspring.config.agents.judges import JudgeConfig
from mainspring.config.curriculum import CurriculumConfig
from mainspring.config.evaluations.evaluation import EvalSchedule
from mainspring.config.policy import PolicyConfig
from mainspring.config.reward import RewardConfig
from mainspring.config.sandbox import SandboxConfig
from mainspring.config.section import BUNDLED
from mainspring.config.tasks import TasksConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Aggregation
from mainspring.config.training.correction import NO_CORRECTION
from mainspring.config.training.optimizer import OptimizerName


class Together(Protocol):
    """The sections of a campaign whose settings are compared."""

    @property
    def agent_sections(self) -> Mapping[str, AgentConfig]: ...

    @property
    def curriculum(self) -> CurriculumConfig: ...

    @property
    def evaluation(self) -> EvalSchedule: ...

    @property
    def judges(self) -> Mapping[str, JudgeConfig]: ...

    @property
    def policy(self) -> PolicyConfig: ...

    @property
    def reward(self) -> RewardConfig: ...

    @property
    def sandbox(self) -> SandboxConfig: ...

    @property
    def tasks(self) -> TasksConfig: ...

    @property
    def trainer(self) -> TrainerConfig: ...


RATIO_LOSSES = ("clip", "dual_clip", "cispo", "gspo")


def leftovers(config: Together) -> Iterator[str]:
    """A line for each group of settings that nothing reads."""
    yield from unused_judges(config.judges, config.reward)
    trainer = config.trainer
    own_loss = ":" in trainer.loss
    own_advantage = ":" in trainer.advantage
    with_raft = trainer.advantage == "raft" or trainer.filter == "solved" or ":" in trainer.filter
    curriculum = config.curriculum
    own_curriculum = ":" in curriculum.kind
    named = (*config.tasks.sets, *config.evaluation.sources)
    sources = {config.tasks.source, *(each.source for each in named)}
    is_bundled, has_own = BUNDLED in sources, bool(sources - {BUNDLED})
    for section, model, names, is_read, needed in (
        ("trainer.kl", trainer.kl, ("estimator", "where", "clamp"), trainer.kl.coef, "kl.coef"),
        (
            "trainer.correction",
            trainer.correction,
            ("low", "high"),
            trainer.correction.kind != NO_CORRECTION,
            "correction.kind",
        ),
        ("trainer.lora", trainer.lora, ("alpha", "targets"), trainer.lora.rank, "lora.rank"),
        (
            "trainer",
            trainer,
            ("aggregation_length",),
            trainer.aggregation is Aggregation.SEQ_MEAN_TOKEN_SUM_NORM or own_loss,
            'aggregation = "seq_mean_token_sum_norm"',
        ),
        (
            "trainer",
            trainer,
            ("clip_low", "clip_high"),
            trainer.loss in RATIO_LOSSES or own_loss,
            "a loss with a ratio",
        ),
        (
            "trainer",
            trainer,
            ("dual_clip",),
            trainer.loss == "dual_clip" or own_loss,
            'loss = "dual_clip"',
        ),
        (
            "trainer",
            trainer,
            ("std",),
            trainer.advantage in ("grpo", "step_wise") or own_advantage,
            'advantage = "grpo" or "step_wise"',
        ),
        (
            "trainer",
            trainer,
            ("turn_discount",),
            trainer.advantage == "step_wise" or own_advantage,
            'advantage = "step_wise"',
        ),
        ("trainer", trainer, ("keep_reward",), with_raft or own_advantage, 'advantage = "raft"'),
        ("trainer", trainer, ("straggler_s",), trainer.quorum is not None, "quorum"),
        (
            "trainer.optimizer",
            trainer.optimizer,
            ("muon_lr", "muon_momentum"),
            trainer.optimizer.name is OptimizerName.MUON,
            'optimizer.name = "muon"',
        ),
        (
            "curriculum",
            curriculum,
            ("low", "high"),
            curriculum.kind == "band" or own_curriculum,
            'curriculum.kind = "band"',
        ),
        (
            "curriculum",
            curriculum,
            ("outside", "recent_groups"),
            curriculum.kind in ("band", "prioritized") or own_curriculum,
            'curriculum.kind = "band" or "prioritized"',
        ),
        (
            "evaluation",
            config.evaluation,
            ("greedy_tasks",),
            config.evaluation.greedy and config.evaluation.measured,
            "a greedy evaluation",
        ),
        (
            "evaluation",
            config.evaluation,
            ("every_steps",),
            config.evaluation.measured,
            "evaluation.splits",
        ),
        (
            "sandbox",
            config.sandbox,
            ("snapshot_mb",),
            config.sandbox.snapshot_every_turns is not None,
            "sandbox.snapshot_every_turns",
        ),
        (
            "tasks",
            config.tasks,
            ("num_train", "num_heldout", "num_heldout_templates"),
            is_bundled,
            'tasks.source = "bundled"',
        ),
        ("tasks", config.tasks, ("unverified",), has_own, "a task set of your own"),
    ):
        if not is_read:
            yield from unread(section, model, names, needed)


def unread(section: str, model: BaseModel, names: tuple[str, ...], needed: str) -> Iterator[str]:
    """A line for those of the settings that are changed from their default."""
    fields = type(model).model_fields
    changed = [name for name in names if getattr(model, name) != fields[name].get_default()]
    if changed:
        yield f"{section}.{' and '.join(changed)} does nothing without {needed}: leave it out"


def unused_judges(judges: Mapping[str, JudgeConfig], reward: RewardConfig) -> Iterator[str]:
    """A line for each judge that is never asked."""
    if reward.has_own_functions:  # which may ask any
        return
    used = {part.judge for part in reward.parts}
    for name in judges:
        if name not in used:
            yield (
                f"[judges.{name}] is used by no part of [reward]: it is never asked; add a part "
                f'with name = "judge" and judge = "{name}"'
            )
