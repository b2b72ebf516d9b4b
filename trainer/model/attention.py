"""torch's attention as Megatron's core attention: causal, grouped queries, any device.

Input is packed: sequences one after the other, without a batch dimension; a token attends to the
tokens of its own sequence only. Over context parallelism a rank holds two of the 2 x CP chunks of
each sequence, one from each end, so that ranks compute equally much; keys and values are gathered.
On GPUs Transformer Engine's attention takes its place. Imported by `trainer.model.policy_model`.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.distributed import ProcessGroup

from mainspring.artifacts.batch_invariance import KEY_BLOCK, whole_blocks
from trainer.model.packing import PackedSequences


@dataclass
class MegatronSequences(PackedSeqParams):
    """Megatron's description of packed sequences, with what attention needs on the host: see
    PackedSequences."""

    lengths_N: tuple[int, ...] = ()
    as_served: bool = False


def for_megatron(sequences: PackedSequences, device: torch.device) -> MegatronSequences:
    lengths_N = sequences.lengths_N
    starts = torch.tensor([0, *lengths_N], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    starts = starts.to(device)
    return MegatronSequences(
        qkv_format="thd",
        cu_seqlens_q=starts,
        cu_seqlens_kv=starts,
        max_seqlen_q=max(lengths_N),
        max_seqlen_kv=max(lengths_N),
        lengths_N=lengths_N,
        as_served=sequences.as_served,
    )


class SdpaAttention(MegatronModule):
    def __init__(
        self,
        config: TransformerConfig,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **_: object,
    ):
        super().__init__(config=config)
        assert config.kv_channels is not None
        self.scale = softmax_scale or config.kv_channels**-0.5
        self._group: ProcessGroup | None = None
        if config.context_parallel_size > 1:
            self._group = pg_collection.cp

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_seq_params: MegatronSequences,
        **_: object,
    ) -> Tensor:
        """[T, heads, channels] in, [T, heads * channels] out; T tokens of all sequences."""
        assert attention_mask is None, "packed sequences are causal and need no mask"
        if self._group is not None:
            return self._over_context(query, key, value, packed_seq_params, self._group)
        lengths = packed_seq_params.lengths_N
        parts = zip(*(x.split(lengths) for x in (query, key, value)), strict=True)
        if packed_seq_params.as_served:
            return torch.cat([self._as_served(*part) for part in parts])
        return torch.cat([self._attend(*part) for part in parts])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """One sequence, or its last tokens: queries are those of the last keys."""
        num_before = len(key) - len(query)
        mask = None
        if num_before:
            ones = torch.ones(len(query), len(key), dtype=torch.bool, device=query.device)
            mask = ones.tril(num_before)
        return self._sdpa(query, key, value, mask)

    def _as_served(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        num_missing = whole_blocks(len(key), KEY_BLOCK) - len(key)
        key, value = (F.pad(x, (0, 0, 0, 0, 0, num_missing)) for x in (key, value))
        # is_causal leaves blocks of keys out, and so sums in another order.
        mask = query.new_full((len(query), len(key)), -torch.inf).triu(1)
        return self._sdpa(query, key, value, mask)

    def _sdpa(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if query.is_cuda and query.dtype is torch.float32:
            # On CUDA only kernels for half precision know grouped queries: in float32 torch would
            # keep the scores of every pair of tokens, 64 GiB for 28 layers and 4,096 tokens.
            num_queries = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(num_queries, 1) for x in (key, value))
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out[0].transpose(0, 1).flatten(1)

    def _over_context(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sequences: MegatronSequences,
        group: ProcessGroup,
    ) -> Tensor:
        size, rank = group.size(), group.rank()
        keys, values = (_Gathered.apply(x, group) for x in (key, value))
        out, start = [], 0
        for length in sequences.lengths_N:
            chunk = length // (2 * size)
            place = slice(start, start + 2 * chunk)
            whole = [_in_order(x[:, place], chunk) for x in (keys, values)]
            for half, number in zip(
                query[place].split(chunk), (rank, 2 * size - 1 - rank), strict=True
            ):
                end = (number + 1) * chunk
                out.append(self._attend(half, whole[0][:end], whole[1][:end]))
            start += 2 * chunk
        return torch.cat(out)


def _in_order(parts: Tensor, chunk: int) -> Tensor:
    """One sequence from its chunks: [ranks, 2 * chunk, ...] to [length, ...]."""
    first, last = parts[:, :chunk], parts[:, chunk:].flip(0)
    return torch.cat([first.flatten(0, 1), last.flatten(0, 1)])


class _Gathered(torch.autograd.Function):
    """[T, ...] of each rank, stacked: [ranks, T, ...]. Backward sums over the ranks."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(part) for _ in range(group.size())]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad[ctx.group.rank()], None
