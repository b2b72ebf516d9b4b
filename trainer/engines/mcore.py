"""The mcore engine: Megatron-core's data parallelism, distributed optimizer and schedules.

For GPUs: tensor, pipeline, context, expert and sequence parallel, bfloat16 with float32 main
weights, recomputation. Invariants: those of `trainer.engines.mcore_module`; a pass begins with
empty gradients; a loss that fails on one rank lets every rank finish the pass.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from megatron.core.models.gpt.gpt_layer_specs import HAVE_TE
from numpy.typing import NDArray
from torch import Tensor

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.errors import ModelError
from mainspring.training.training_faults import AlgorithmBroken
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.mcore_module import McoreModule
from trainer.engines.mcore_optimizer import McoreOptimizer
from trainer.engines.protocol import MicroBatchLoss
from trainer.engines.sharded_files import ShardedFiles
from trainer.model import hf_directory
from trainer.model.lora import add_adapters
from trainer.model.policy_model import build_model
from trainer.model.processes import Processes
from trainer.model.weights import Weights, first_layer


class McoreEngine:
    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        if processes.device.type == "cuda" and not HAVE_TE:
            raise ModelError(
                "the engine 'mcore' needs Transformer Engine, which is not installed: without it "
                "Megatron-core 0.16.1 cannot load its own checkpoints",
                remedy="pip install 'mainspring[cuda]', or set trainer.engine = 'plain'",
            )
        hf = hf_directory.load_config(model_dir)
        temperature = config.policy.temperature or 1.0
        model = build_model(hf, config.trainer, processes, temperature=temperature)
        lora = config.trainer.lora
        add_adapters(model, lora, config.seed, first_layer(model, processes), processes)
        self.weights = Weights(model, hf, processes, model_dir, lora)
        self.weights.load_hf(model_dir)
        self.files = ShardedFiles(model)
        self.module = McoreModule(model, config.trainer, processes)

    def optimizer(self, config: OptimizerConfig) -> McoreOptimizer:
        return self.module.optimizer(config)

    def logprobs(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        return self.module.rows(sequences)

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: MicroBatchLoss) -> None:
        self.module.zero_gradients()
        problems: list[AlgorithmBroken] = []

        def guarded(share: list[int], outputs: Tensor) -> Tensor:
            logprobs, entropy = outputs
            try:
                if not problems:
                    return loss(share, logprobs, entropy)
            except AlgorithmBroken as problem:  # the other stages wait for this one's gradients
                problems.append(problem)
            return logprobs.sum() * 0.0

        self.module.run(sequences, guarded, forward_only=False)
        if problems:
            raise problems[0]
