"""The KV cache: one row ("slot") per request, kept after the request for the next turn.

Invariants: rows [0, running) belong to running requests, in order, so that a decode step attends
over one contiguous block; the rows behind are idle and keep the KV of what ran there last;
`tokens[slot, :lengths[slot]]` are the tokens whose KV is in the slot, made with one adapter or
none, and no request with another one gets it; memory is never uninitialised (a NaN behind the mask
would still poison the row). Used by the engine thread only.
"""

from dataclasses import dataclass

import numpy
import psutil
import torch

from mainspring.errors import ModelError

MIN_SHARED_TOKENS = 8
"""Shorter common prefixes are computed again: copying them costs as much."""

NO_TOKEN = -1
SLOTS_PER_RUNNING = 2
"""Rollouts whose command is running keep their KV: twice the batch covers a queue as long again."""
MIN_LENGTH = 64
"""Tokens of context below which no rollout fits: not worth naming as a remedy."""
MAX_BATCH = 64
"""Requests generated at once where none are asked for: more of them gain nothing on a few cores."""
MEMORY_SHARE = 0.5
"""Share of the free memory for the cache, if its size is not asked for: others need memory too."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `length` tokens of a request are cached in `slot`."""

    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class KvShape:
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_length: int
    """Tokens a slot holds: the engine's context length."""

    @property
    def slot_bytes(self) -> int:
        """Bytes of float32 keys and values."""
        return 4 * 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.max_length


def fitting_batch(shape: KvShape) -> int:
    """Requests that the free memory has room for; one in any case, which SlotPool may refuse."""
    slots = int(MEMORY_SHARE * psutil.virtual_memory().available) // shape.slot_bytes
    return min(MAX_BATCH, max(1, slots // SLOTS_PER_RUNNING))


class SlotPool:
    def __init__(self, num_slots: int, shape: KvShape) -> None:
        size = (shape.num_layers, 2, num_slots, shape.num_kv_heads, shape.max_length)
        size = (*size, shape.head_dim)
        needed, free = num_slots * shape.slot_bytes, psutil.virtual_memory().available
        if needed > free:
            tokens, batch = shape.max_length, num_slots // SLOTS_PER_RUNNING
            fits = free // shape.slot_bytes // SLOTS_PER_RUNNING
            length = tokens * free // needed
            remedies = [
                f"--max-batch {fits} fits with {tokens} tokens" if fits else "",
                f"--context-length {length} fits with --max-batch {batch}"
                if length >= MIN_LENGTH
                else "",
            ]
            remedy = "; ".join(filter(None, remedies)) or "take a machine with more memory"
            raise ModelError(
                f"the KV cache of {num_slots} slots of {tokens} tokens needs "
                f"{needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free",
                remedy=remedy,
            )
        # numpy.zeros maps zero pages lazily: slots and positions never used cost no memory.
        self._kv = torch.from_numpy(numpy.zeros(size, dtype=numpy.float32))
        self._tokens = numpy.full((num_slots, shape.max_length), NO_TOKEN)
        self._rows = numpy.arange(num_slots)
        self._last_used = [0] * num_slots
        self._adapters: list[str | None] = [None] * num_slots
        self._clock = 0
        self.lengths = [0] * num_slots
        self.num_layers = shape.num_layers
        self.written: list[int] = []
        """Layers of the last pass, as often as they wrote."""

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer: [slots, kv_heads, max_length, head_dim] each."""
        self.written.append(index)
        keys, values = self._kv[index]
        return keys, values

    def occupy(self, slot: int, prefix: Prefix, adapter: str | None = None) -> None:
        """Make idle `slot` (all before it run) start with the cached `prefix`, just looked up for
        the same adapter.

        A slot whose whole content is the prefix (the last turn of the same rollout) is moved here;
        a part of a slot is copied, so that its owner still finds it.
        """
        source, shared = prefix.slot, prefix.length
        if source >= slot and 0 < shared == self.lengths[source]:
            self.swap(source, slot)
            self._adapters[slot] = adapter
            return
        victim = min(range(slot, len(self.lengths)), key=self._last_used.__getitem__)
        self.swap(victim, slot)
        if source in (victim, slot):
            source = slot if source == victim else victim
        if source != slot:
            self._copy(source, slot, shared)
        self.lengths[slot] = shared
        self._adapters[slot] = adapter

    def longest_prefix(self, ids: list[int], adapter: str | None = None) -> Prefix:
        """The slot sharing most of `ids`' beginning; the last token never counts, because its
        logits are what the caller is after."""
        limit = min(len(ids) - 1, max(self.lengths))
        if limit < MIN_SHARED_TOKENS:
            return Prefix(0, 0)
        differs = self._tokens[:, :limit] != numpy.array(ids[:limit])
        first = differs.argmax(1)
        common = numpy.where(differs[self._rows, first], first, limit)
        common = numpy.minimum(common, self.lengths)
        common[[made_with != adapter for made_with in self._adapters]] = 0
        slot = int(common.argmax())
        shared = int(common[slot])
        return Prefix(slot, shared) if shared >= MIN_SHARED_TOKENS else Prefix(0, 0)

    def record(self, slots: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> None:
        """Note which tokens a forward pass has just written. [N] each."""
        self._tokens[slots.numpy(), positions.numpy()] = ids.numpy()

    def swap(self, a: int, b: int) -> None:
        if a == b:
            return
        length = self.lengths[a]
        kv, tokens = self._kv[:, :, a, :, :length].clone(), self._tokens[a, :length].copy()
        self._copy(b, a, self.lengths[b])
        self._kv[:, :, b, :, :length] = kv
        self._tokens[b, :length] = tokens
        for values in (self.lengths, self._last_used):
            values[a], values[b] = values[b], values[a]
        adapters = self._adapters
        adapters[a], adapters[b] = adapters[b], adapters[a]

    def _copy(self, source: int, target: int, length: int) -> None:
        self._kv[:, :, target, :, :length] = self._kv[:, :, source, :, :length]
        self._tokens[target, :length] = self._tokens[source, :length]

    def release(self, slot: int) -> None:
        """Its request has ended; the KV may serve a later one."""
        self._clock += 1
        self._last_used[slot] = self._clock

    def forget_adapter(self, adapter: str) -> None:
        """No request runs with it: what is kept of those before serves none."""
        for slot in range(len(self.lengths)):
            if self._adapters[slot] == adapter:
                self.lengths[slot] = 0

    def forget(self, running: int = 0) -> None:
        """No KV of now serves a later request; the first `running` slots keep theirs to
        continue."""
        self._tokens.fill(NO_TOKEN)
        self.lengths[running:] = [0] * (len(self.lengths) - running)
