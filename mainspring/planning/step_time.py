"""Expected time of a step, and which part of it the others wait for.

Owns what of a step's operations is computed twice. Invariant: a figure follows from the campaign
file, the model and the printed assumptions; nothing is measured here.
"""

from dataclasses import dataclass
from enum import StrEnum

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.parallel import Recompute
from mainspring.planning.assumptions import Assumptions
from mainspring.planning.demand import Demand
from mainspring.planning.model_flops import attention_flops, layer_flops, output_flops
from mainspring.planning.model_shape import ModelShape


class Stage(StrEnum):
    GENERATE = "generate"
    """Engines generate the batch's action tokens."""
    COMMANDS = "commands"
    """Sandboxes run the agents' commands."""
    TRAIN = "train"
    """Ranks compute gradients and move the weights."""
    CHECKPOINT = "checkpoint"
    """The checkpoint is written, or the weights of a version without one: their average."""
    PUBLISH = "publish"
    """Engines load the new weights, all at once from one disk."""


ROLLOUT_STAGES = (Stage.GENERATE, Stage.COMMANDS)


@dataclass(frozen=True, slots=True)
class StepTime:
    seconds_of: dict[Stage, float]
    flops: float
    """Operations of one step, over all ranks, recomputation included."""
    bubble: float
    """Share of the trainer's time in which a pipeline stage waits for others."""
    overlaps: bool
    """Whether rollouts run while the trainer computes."""

    @property
    def rollout_s(self) -> float:
        """Engines and sandboxes work at the same time, on different rollouts."""
        return max(self.seconds_of[stage] for stage in ROLLOUT_STAGES)

    @property
    def trainer_s(self) -> float:
        return sum(
            seconds for stage, seconds in self.seconds_of.items() if stage not in ROLLOUT_STAGES
        )

    @property
    def total_s(self) -> float:
        both = self.rollout_s, self.trainer_s
        return max(both) if self.overlaps else sum(both)

    @property
    def bottleneck(self) -> Stage:
        stages = list(self.seconds_of)
        if self.overlaps:
            rollouts_wait = self.trainer_s >= self.rollout_s
            stages = [stage for stage in stages if (stage in ROLLOUT_STAGES) != rollouts_wait]
        return max(stages, key=self.seconds_of.__getitem__)


def step_time(
    config: CampaignConfig,
    shape: ModelShape,
    demand: Demand,
    assumed: Assumptions,
    num_micro_batches: int,
) -> StepTime:
    """`num_micro_batches`: of one data-parallel copy in a step."""
    trainer = config.trainer
    flops = trainer.updates_per_step * training_flops(config, shape, demand, assumed)
    if trainer.critic is not None:
        flops += (trainer.updates_per_step + 1 / 3) * critic_flops(shape, demand, assumed)
    bubble = (trainer.pipeline_parallel - 1) / (num_micro_batches + trainer.pipeline_parallel - 1)
    speed = trainer.world_size * assumed.peak_flops_per_rank * assumed.mfu * (1 - bubble)
    engines = len(config.policy.engines) or 1  # at least one joins
    num_commands = demand.rollouts_per_step * assumed.turns_per_rollout
    return StepTime(
        seconds_of={
            Stage.GENERATE: demand.action_tokens_per_step / (engines * assumed.decode_tokens_per_s),
            Stage.COMMANDS: num_commands * assumed.command_s / demand.sandboxes,
            Stage.TRAIN: flops / speed,
            Stage.CHECKPOINT: demand.bytes_written_per_step / assumed.disk_bytes_per_s,
            Stage.PUBLISH: engines * demand.export_bytes / assumed.disk_bytes_per_s,
        },
        flops=flops,
        bubble=bubble,
        overlaps=trainer.max_staleness > 0 and not trainer.colocate,
    )


def training_flops(
    config: CampaignConfig, shape: ModelShape, demand: Demand, assumed: Assumptions
) -> float:
    """Operations of one pass over a batch: those that the model needs, and those computed twice."""
    tokens = demand.tokens_per_step
    action_tokens = demand.action_tokens_per_step
    layers = layer_flops(shape, tokens)
    attention = attention_flops(shape, assumed.tokens_per_rollout * tokens)
    output = output_flops(shape, action_tokens)
    match config.trainer.recompute:
        case Recompute.NONE:
            again = 0.0
        case Recompute.MLP:
            again = 2.0 * _active_mlp(shape) * tokens
        case Recompute.FULL:
            again = (layers + attention) / 3
    again += output / 3  # logits of each chunk
    return layers + attention + output + again


def critic_flops(shape: ModelShape, demand: Demand, assumed: Assumptions) -> float:
    """Operations of a critic's pass over a batch; its values before the step take a third of it."""
    tokens = demand.tokens_per_step
    return layer_flops(shape, tokens) + attention_flops(shape, assumed.tokens_per_rollout * tokens)


def _active_mlp(shape: ModelShape) -> int:
    experts = shape.experts_per_token * shape.expert_parameters
    return shape.num_layers * (shape.mlp_parameters + experts)
