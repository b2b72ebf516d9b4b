"""Demand of a campaign on engines, sandbox nodes and disks.

Invariant: an upper bound takes every rollout at `policy.max_context`; an expected figure takes the
averages that are given, and each of those is named among the assumptions.
"""

from dataclasses import dataclass

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.algorithm import Samples
from mainspring.config.training.optimizer import OptimizerName
from mainspring.planning.assumptions import Assumptions
from mainspring.planning.engine_facts import bytes_per_value, facts_of
from mainspring.planning.model_shape import ModelShape
from mainspring.planning.rank_kinds import layer_adapters

MANIFEST_BYTES = 1 << 20
"""Bytes of a checkpoint beside its weights: manifest, tokenizer, config."""


@dataclass(frozen=True, slots=True)
class Demand:
    rollouts_per_step: int
    rollouts_in_flight: int
    """Rollouts of training, at most; evaluations have their own bound."""
    evaluation_rollouts: int
    """Rollouts of one evaluation, at once, beside those of training."""
    sandboxes: int
    """Open at once, as far as `sandbox.max_open` lets them be."""
    sandbox_memory_bytes: int
    sandbox_cpus: float
    sandbox_disk_bytes: int
    most_tokens_per_step: int
    tokens_per_step: int
    """Expected."""
    action_tokens_per_step: int
    """Expected; engines generate as many."""
    most_kv_tokens: int
    """At all engines together."""
    kv_tokens: int
    """Expected: a rollout in flight is half-way through on average."""
    kv_bytes_per_token: int
    checkpoint_bytes: int
    """Size of one, with its export."""
    export_bytes: int
    num_checkpoints: int
    """Those that are kept, and the one that is being written."""
    num_exports: int
    """Kept of versions between checkpoints, which have weights alone."""
    checkpoint_every: int
    """Steps from one checkpoint to the next."""

    @property
    def disk_bytes(self) -> int:
        checkpoints = self.num_checkpoints * self.checkpoint_bytes
        return checkpoints + self.num_exports * self.export_bytes

    @property
    def bytes_written_per_step(self) -> int:
        """Averaged over the steps from one checkpoint to the next."""
        state = self.checkpoint_bytes - self.export_bytes
        return self.export_bytes + state // self.checkpoint_every


def demand_of(config: CampaignConfig, shape: ModelShape, assumed: Assumptions) -> Demand:
    trainer, sandbox = config.trainer, config.sandbox
    per_step = trainer.groups_per_step * trainer.group_size
    in_flight = min(
        (trainer.max_staleness + 1) * per_step, trainer.num_steps * per_step
    )  # the last steps admit no more
    sandboxes = in_flight + config.evaluation.concurrency
    if sandbox.max_open is not None:
        sandboxes = min(sandboxes, sandbox.max_open)
    tokens = per_step * assumed.tokens_per_rollout
    # A sample for each reply has all that came before it.
    trained, most = tokens, per_step * config.policy.max_context
    if trainer.samples is Samples.CALL:
        trained = tokens * (assumed.turns_per_rollout + 1) // 2
        most *= max(agent.step_limit for agent in config.agent_sections.values())
    kv_rollouts = in_flight + config.evaluation.concurrency
    export = shape.num_parameters * shape.file_bytes_per_weight
    return Demand(
        rollouts_per_step=per_step,
        rollouts_in_flight=in_flight,
        evaluation_rollouts=config.evaluation.concurrency,
        sandboxes=sandboxes,
        sandbox_memory_bytes=sandboxes * sandbox.memory_mb << 20,
        sandbox_cpus=sandboxes * sandbox.cpus,
        sandbox_disk_bytes=sandboxes * sandbox.disk_mb << 20,
        most_tokens_per_step=most,
        tokens_per_step=trained,
        action_tokens_per_step=round(tokens * assumed.action_share),
        most_kv_tokens=kv_rollouts * config.policy.max_context,
        kv_tokens=kv_rollouts * assumed.tokens_per_rollout // 2,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        checkpoint_bytes=_state_bytes(config, shape) + export + MANIFEST_BYTES,
        export_bytes=export,
        num_checkpoints=trainer.keep_checkpoints + trainer.keep_best + 1,
        num_exports=trainer.keep_checkpoints if trainer.checkpoint_every > 1 else 0,
        checkpoint_every=trainer.checkpoint_every,
    )


def _state_bytes(config: CampaignConfig, shape: ModelShape) -> int:
    """Weights and optimizer of all ranks, each once."""
    trainer = config.trainer
    moments = 8
    if trainer.optimizer.name is OptimizerName.MUON:
        # One moment of hidden matrices, two of the rest.
        hidden = shape.num_layers * (shape.attention_parameters + shape.mlp_parameters)
        share = 4 * hidden / shape.num_parameters
        moments = round(8 - share)
    weight = bytes_per_value(trainer)
    if facts_of(trainer).shards_weights:
        weight = 4
    elif facts_of(trainer).shards_optimizer and weight == 2:
        weight += 4  # the float32 copy that the optimizer moves
    trained, frozen = shape.num_parameters, 0
    if trainer.lora.rank:
        adapters, _ = layer_adapters(shape, trainer, 1)
        trained, frozen = shape.num_layers * adapters, shape.num_parameters
    state = bytes_per_value(trainer) * frozen + (weight + moments) * trained
    if trainer.critic is not None:
        output = 0 if shape.is_tied else shape.embedding_parameters
        state += (weight + 8) * (shape.num_parameters - output)
    return state
