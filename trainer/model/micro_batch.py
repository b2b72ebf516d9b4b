"""Micro-batches as the model takes them: this rank's part of packed sequences, and back.

Sequences stand one after the other; each is lengthened to a multiple of `alignment` with tokens
that nothing before them can see. Invariant: every rank of a pipeline, context or tensor-parallel
group makes the same micro-batches in the same order; one without sequences keeps ranks in step.
Imported by the step engines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from mainspring.artifacts.batch_invariance import ROW_BLOCK, whole_blocks
from mainspring.config.training.parallel import ParallelConfig
from mainspring.trajectories.sequences import MaskedSequence
from mainspring.trajectories.turns import BrokenTrajectory
from trainer.model.packing import PackedSequences, pack
from trainer.model.processes import Processes


@dataclass(frozen=True, slots=True)
class MicroBatch:
    share: list[int]
    """Indices of its sequences; empty: computed for the sake of other ranks."""
    ids: Tensor
    """[1, T] this rank's tokens."""
    labels: Tensor
    """[1, T] the token after each of them."""
    wanted: Tensor
    """[1, T] whether the log-prob of that token is wanted."""
    sequences: PackedSequences
    order_N: Tensor | None
    """Order in the sequences of the wanted tokens of all context-parallel ranks, rank after rank.
    None without context parallelism."""
    num_wanted_R: tuple[int, ...]
    """Wanted tokens of each context-parallel rank."""

    def through(self, model: Any) -> Any:
        """Output of a `trainer.model.policy_model.PolicyModel`, wrapped or not, for this rank's
        tokens."""
        from trainer.model.attention import for_megatron  # the engine `fsdp` does without Megatron

        return model(
            self.ids,
            None,
            None,
            labels=self.labels,
            loss_mask=self.wanted,
            packed_seq_params=for_megatron(self.sequences, self.ids.device),
        )


def alignment(parallel: ParallelConfig, *, as_served: bool) -> int:
    """Number that divides the model's length of every sequence."""
    align = ROW_BLOCK if as_served else 1
    if parallel.context_parallel > 1:
        align = 2 * parallel.context_parallel
    return align * (parallel.tensor_parallel if parallel.sequence_parallel else 1)


def micro_batches(
    sequences: Sequence[MaskedSequence],
    parallel: ParallelConfig,
    processes: Processes,
    *,
    as_served: bool = False,
) -> Iterator[MicroBatch]:
    """Micro-batches of this rank, at least one. Raises BrokenTrajectory."""
    if any(row.mask[0] for row in sequences):
        raise BrokenTrajectory("the first token of a sequence cannot be an action")
    align = alignment(parallel, as_served=as_served)
    # The model sees all but the last token, which predicts nothing.
    lengths = [whole_blocks(max(1, len(row.token_ids) - 1), align) for row in sequences]
    shares = pack(lengths, max_tokens=parallel.micro_batch_tokens, num_ranks=processes.dp_size)
    for share in shares[processes.dp_rank] or [[]]:
        rows = [sequences[n] for n in share]
        of_rows = [lengths[n] for n in share] or [align]
        yield _micro_batch(share, rows, of_rows, processes, as_served)


def _micro_batch(
    share: list[int],
    rows: list[MaskedSequence],
    lengths: list[int],
    processes: Processes,
    as_served: bool,
) -> MicroBatch:
    total = sum(lengths)
    ids, labels = np.zeros(total, np.int64), np.zeros(total, np.int64)
    wanted = np.zeros(total, np.bool_)
    start = 0
    for row, length in zip(rows, lengths, strict=False):
        end = start + len(row.token_ids) - 1
        ids[start:end], labels[start:end] = row.token_ids[:-1], row.token_ids[1:]
        wanted[start:end] = row.mask[1:]
        start += length
    order, num_wanted = None, (int(wanted.sum()),)
    group = processes.cp_group
    if group.size() > 1:
        places = [_places(lengths, rank, group.size()) for rank in range(group.size())]
        chosen = [places_of[wanted[places_of]] for places_of in places]
        order = torch.from_numpy(np.argsort(np.concatenate(chosen))).to(processes.device)
        num_wanted = tuple(len(rank_places) for rank_places in chosen)
        own_places = places[group.rank()]
        ids, labels, wanted = ids[own_places], labels[own_places], wanted[own_places]

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values)[None].to(processes.device)

    return MicroBatch(
        share=share,
        ids=tensor(ids),
        labels=tensor(labels),
        wanted=tensor(wanted),
        sequences=PackedSequences(tuple(lengths), as_served),
        order_N=order,
        num_wanted_R=num_wanted,
    )


def _places(lengths: list[int], rank: int, size: int) -> np.ndarray:
    """Where a context-parallel rank's tokens stand: two chunks of each sequence."""
    places, start = [], 0
    for length in lengths:
        chunk = length // (2 * size)
        for number in (rank, 2 * size - 1 - rank):
            places.append(np.arange(start + number * chunk, start + (number + 1) * chunk))
        start += length
    return np.concatenate(places)


def whole(outputs: Tensor, batch: MicroBatch, processes: Processes) -> Tensor:
    """[2, N] of all wanted tokens in the order of the sequences, from this rank's part. Every rank
    computes the same loss from it; the gradient of each one's own part is its own."""
    if batch.order_N is None:
        return outputs
    gathered = _Gathered.apply(outputs, batch.num_wanted_R, processes.cp_group)
    return gathered[:, batch.order_N]


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own: Tensor, num_wanted_R: tuple[int, ...], group: ProcessGroup
    ) -> Tensor:
        ctx.start = sum(num_wanted_R[: group.rank()])
        ctx.length = own.shape[1]
        padded = own.new_zeros(len(own), max(num_wanted_R))
        padded[:, : own.shape[1]] = own
        parts = [torch.empty_like(padded) for _ in num_wanted_R]
        dist.all_gather(parts, padded, group=group)
        return torch.cat(
            [part[:, :length] for part, length in zip(parts, num_wanted_R, strict=True)], 1
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad[:, ctx.start : ctx.start + ctx.length], None, None
