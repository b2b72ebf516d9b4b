"""How the ranks of [trainer] share a model and a batch, and in which numbers they compute.

Owns what does not depend on the model; sizes that do not divide its layers, heads or experts are
refused by the trainer, which reads them. Base of the sections [trainer] of campaigns and
supervised runs.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from mainspring.algorithms.gap import Dtype
from mainspring.config.section import MANY_TOKENS, YEAR_S, Section, Switch, Within
from mainspring.config.training.lora import LoraConfig
from mainspring.config.training.optimizer import OptimizerConfig, OptimizerName

PLAIN, MCORE, FSDP = "plain", "mcore", "fsdp"


class Device(StrEnum):
    CUDA = "cuda"
    """One GPU for each rank; with fewer GPUs the campaign fails."""
    CPU = "cpu"
    """The CPU, also where there is a GPU."""


class Recompute(StrEnum):
    NONE = "none"
    """Every activation is kept from the forward pass to the backward pass."""
    MLP = "mlp"
    """The MLP of each layer is computed again in the backward pass: about half of the memory."""
    FULL = "full"
    """Each layer is computed again from its input: least memory, a third more computation."""


_NO_SHARING = ("pipeline_parallel", "context_parallel", "expert_parallel", "sequence_parallel")
_CANNOT = {
    PLAIN: (*_NO_SHARING, "recompute", "optimizer_offload", "dtype"),
    FSDP: ("tensor_parallel", *_NO_SHARING),
}
"""Settings that an engine does not have."""


class ParallelConfig(Section):
    engine: str | None = None
    """Step engine. "plain": Megatron-core's model in float32, for CPUs and small models. "mcore":
    Megatron-core's own data parallelism, optimizer and schedules, for GPUs. "fsdp": any causal
    language model of transformers, sharded by torch's FSDP2 over `data_parallel` ranks. Or a class
    of your own as "package.module:Class". Unset: "mcore" on the device "cuda", "plain" on the
    device "cpu"."""
    device: Device = Device.CUDA
    """Device of the ranks."""
    dtype: Dtype = Dtype.FLOAT32
    """Numbers of weights and activations. In "bfloat16" the optimizer keeps float32 copies of the
    weights, which it moves."""
    tensor_parallel: Annotated[int, Within(le=65_536)] = Field(default=1, ge=1)
    """Number of ranks that share each layer."""
    pipeline_parallel: Annotated[int, Within(le=65_536)] = Field(default=1, ge=1)
    """Number of stages that share the layers; needs the engine "mcore"."""
    context_parallel: Annotated[int, Within(le=65_536)] = Field(default=1, ge=1)
    """Number of ranks that share each sequence; needs the engine "mcore"."""
    expert_parallel: Annotated[int, Within(le=65_536)] = Field(default=1, ge=1)
    """Number of ranks that share the experts of a layer; needs the engine "mcore"."""
    data_parallel: Annotated[int, Within(le=65_536)] = Field(default=1, ge=1)
    """Number of copies of the model that share a batch; with the engine "fsdp" number of ranks that
    share batch and model."""
    sequence_parallel: Switch = False
    """Whether tensor-parallel ranks also share the tokens between layers, which saves memory; needs
    the engine "mcore"."""
    recompute: Recompute = Recompute.NONE
    """Activations computed again in the backward pass to save memory; needs the engine "mcore" or
    "fsdp", which knows "full"."""
    optimizer_offload: Switch = False
    """Whether the optimizer's state is kept in the host's memory; needs the engine "mcore" and
    GPUs. With "fsdp" weights and gradients are kept there too, and the host's CPU moves them."""
    micro_batch_tokens: Annotated[int, Within(le=MANY_TOKENS)] = Field(default=8192, ge=64)
    """Token budget of one packed micro-batch. A longer sequence is a micro-batch of its own."""
    threads_per_rank: Annotated[int, Within(le=4096)] = Field(default=1, ge=1)
    """OMP threads of each rank on CPU."""
    lora: LoraConfig = LoraConfig()
    placement_timeout_s: Annotated[float, Within(le=YEAR_S)] = Field(default=600.0, gt=0)
    """Seconds to wait until a Ray cluster's hosts have what the ranks need."""

    @property
    def engine_name(self) -> str:
        """The engine that is set, or the device's."""
        return self.engine or (MCORE if self.device is Device.CUDA else PLAIN)

    @property
    def world_size(self) -> int:
        """Number of ranks. Experts are shared by ranks that share something else too."""
        copies = self.context_parallel * self.data_parallel
        return self.tensor_parallel * self.pipeline_parallel * copies

    def check_optimizer(self, optimizer: OptimizerConfig) -> None:
        """Raises ValueError where it cannot move a model that is shared or adapted so."""
        if optimizer.name is not OptimizerName.MUON:
            return
        if self.lora.rank:
            raise ValueError(
                "optimizer.name = 'muon' moves the model's own matrices, which lora.rank freezes: "
                "set optimizer.name = 'adamw'"
            )
        if self.tensor_parallel > 1:
            raise ValueError(
                "optimizer.name = 'muon' orthogonalises whole matrices: set tensor_parallel = 1"
            )

    @model_validator(mode="after")
    def _the_engine_can_share_so(self) -> Self:
        for name in _CANNOT.get(self.engine_name, ()):
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(
                    f'the engine "{self.engine_name}" cannot do {name} = {value}: set engine = '
                    f'"mcore", or remove {name}'
                )
        if self.engine_name == FSDP:
            self._check_fsdp()
        return self

    def _check_fsdp(self) -> None:
        if self.recompute is Recompute.MLP:
            raise ValueError(
                'the engine "fsdp" cannot do recompute = "mlp", as models differ in what an MLP '
                'is: set recompute = "full", or remove recompute'
            )
        if self.optimizer_offload and self.device is not Device.CUDA:
            raise ValueError(
                f"optimizer_offload moves what is on a GPU, and device is '{self.device}': remove "
                "optimizer_offload"
            )

    @model_validator(mode="after")
    def _tokens_are_shared_inside_a_layer(self) -> Self:
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ValueError("sequence_parallel = true needs tensor_parallel = 2 or more")
        return self

    @model_validator(mode="after")
    def _experts_divide_the_other_ranks(self) -> Self:
        copies = self.context_parallel * self.data_parallel * self.tensor_parallel
        if copies % self.expert_parallel:
            raise ValueError(
                f"expert_parallel = {self.expert_parallel} does not divide the {copies} ranks of a "
                "pipeline stage (tensor_parallel x context_parallel x data_parallel)"
            )
        return self
