"""The plain engine: a Megatron-core model in float32, one backward pass a micro-batch.

For CPUs and small models. Rows of a micro-batch are padded to the longest
(`trainer.batching`); the gradients stay in the parameters' `.grad`. In a reproducible campaign the
log-probs of served tokens have the bits of the CPU engine's: rows and keys come in whole blocks.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mainspring.algorithms.schedule import Schedule
from mainspring.batch_invariance import KEY_BLOCK, ROW_BLOCK, whole_blocks
from mainspring.config.campaign import CampaignConfig
from mainspring.config.optimizer import OptimizerConfig
from mainspring.trajectories.sequences import MaskedSequence
from mainspring.trajectories.turns import BrokenTrajectory
from trainer import hf_directory
from trainer.batching import pack
from trainer.engines.protocol import MicroBatchLoss
from trainer.logprobs import logprob_entropy
from trainer.model import SdpaAttention, build_model
from trainer.optimizer import PolicyOptimizer
from trainer.processes import Processes
from trainer.weights import Weights


class PlainEngine:
    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        self._processes = processes
        self._micro_batch_tokens = config.trainer.micro_batch_tokens
        self._temperature = config.policy.temperature or 1.0
        self._is_reproducible = config.schedule is Schedule.REPRODUCIBLE
        self._hf = hf_directory.load_config(model_dir)
        self._model = build_model(self._hf, processes.tp_size, processes.device)
        modules = self._model.modules()
        self._attentions = [each for each in modules if isinstance(each, SdpaAttention)]
        self.weights = Weights(self._model, self._hf, processes, model_dir)
        self.weights.load_hf(model_dir)

    def optimizer(self, config: OptimizerConfig) -> PolicyOptimizer:
        return PolicyOptimizer(self._model, self._hf, config, self._processes)

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        out: dict[int, NDArray[np.float32]] = {}
        for share in self._micro_batches(sequences):
            rows = [sequences[n] for n in share]
            found, _ = self._forward(rows)
            parts = found.cpu().split([int(row.mask.sum()) for row in rows])
            for n, row, part in zip(share, rows, parts, strict=True):
                out[n] = np.zeros(len(row.mask), np.float32)
                out[n][row.mask] = part.numpy()
        return out

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: MicroBatchLoss) -> None:
        for share in self._micro_batches(sequences):
            logprobs, entropy = self._forward([sequences[n] for n in share])
            loss(share, logprobs, entropy).backward()

    def _micro_batches(self, sequences: Sequence[MaskedSequence]) -> Iterator[list[int]]:
        """Of this rank's share: indices of sequences."""
        shares = pack(
            [self._num_tokens(sequence) for sequence in sequences],
            max_tokens=self._micro_batch_tokens,
            num_ranks=self._processes.dp_size,
        )
        return (share for share in shares[self._processes.dp_rank] if share)

    def _num_tokens(self, sequence: MaskedSequence) -> int:
        """Of its row at least. The model sees all but the last one, which predicts nothing."""
        num_tokens = len(sequence.token_ids)
        if not self._is_as_served(sequence):
            return num_tokens
        return whole_blocks(num_tokens - 1, ROW_BLOCK) + 1

    def _is_as_served(self, sequence: MaskedSequence) -> bool:
        return self._is_reproducible and sequence.is_served

    def _forward(self, rows: list[MaskedSequence]) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the masked tokens, sequence after sequence: [T], [T]."""
        if any(row.mask[0] for row in rows):
            raise BrokenTrajectory("the first token of a sequence cannot be an action")
        as_served = self._is_as_served(rows[0])
        length = max(self._num_tokens(row) for row in rows)
        ids = torch.zeros(len(rows), length, dtype=torch.int64)
        wanted = torch.zeros(len(rows), length, dtype=torch.bool)
        for n, row in enumerate(rows):
            ids[n, : len(row.token_ids)] = torch.from_numpy(row.token_ids.astype(np.int64))
            wanted[n, : len(row.mask)] = torch.from_numpy(row.mask.copy())
        ids, wanted = ids.to(self._processes.device), wanted.to(self._processes.device)
        for attention in self._attentions:
            attention.key_block = KEY_BLOCK if as_served else 1
        logits = self._model(ids[:, :-1], None, None)[wanted[:, 1:]]
        if self._temperature != 1.0:
            logits = logits / self._temperature
        return logprob_entropy(
            logits,
            ids[wanted],
            self._processes.tp_group,
            self._hf.vocab_size,
            as_served=as_served,
        )
