"""Slots: one for each request, kept after the request for the next turn.

Invariants: slots [0, running) belong to running requests, in order, so that a decode step looks at
one contiguous block; those behind are idle and keep what ran there last;
`tokens[slot, :lengths[slot]]` are the tokens that the slot has computed, made with one adapter or
none, and no request with another one gets it. What is kept of the tokens is the store's: keys and
values, states of layers, or a cache of transformers. Used by the engine thread only.
"""

from dataclasses import dataclass
from typing import Protocol

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
    token_bytes: int
    """Bytes that a slot keeps of a token: keys and values of all layers."""
    max_length: int
    """Tokens a slot holds: the engine's context length."""
    state_bytes: int = 0
    """Bytes of a slot's states, whatever its length."""
    device: str = "cpu"

    @property
    def slot_bytes(self) -> int:
        return max(1, self.token_bytes * self.max_length + self.state_bytes)

    def free_bytes(self) -> int:
        """Free bytes of the memory where slots lie."""
        if self.device != "cpu":
            return torch.cuda.mem_get_info(self.device)[0]
        return psutil.virtual_memory().available

    def fitting_batch(self) -> int:
        """Requests that the free memory has room for; one in any case, which `check` may refuse."""
        slots = int(MEMORY_SHARE * self.free_bytes()) // self.slot_bytes
        return min(MAX_BATCH, max(1, slots // SLOTS_PER_RUNNING))

    def check(self, num_slots: int) -> None:
        """Raises ModelError when they do not fit."""
        needed, free = num_slots * self.slot_bytes, self.free_bytes()
        if needed <= free:
            return
        tokens, batch = self.max_length, num_slots // SLOTS_PER_RUNNING
        fits = free // self.slot_bytes // SLOTS_PER_RUNNING
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


class SlotStore(Protocol):
    """Keeps what the tokens of each slot came to."""

    def swap(self, a: int, b: int, length_a: int, length_b: int) -> None: ...

    def copy(self, source: int, target: int, length: int, whole: int) -> None:
        """The first `length` of the `whole` tokens in `source`, also onto itself."""
        ...

    def usable(self, slot: int, common: int, whole: int) -> int:
        """Most tokens, up to `common`, that `copy` can take from a slot that holds `whole`."""
        ...

    def forget(self, slot: int) -> None:
        """Its tokens serve no later request."""
        ...


class SlotPool:
    def __init__(self, num_slots: int, max_length: int, store: SlotStore) -> None:
        self.store = store
        self._tokens = numpy.full((num_slots, max_length), NO_TOKEN)
        self._rows = numpy.arange(num_slots)
        self._last_used = [0] * num_slots
        self._adapters: list[str | None] = [None] * num_slots
        self._clock = 0
        self.lengths = [0] * num_slots

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
        if shared:
            self.store.copy(source, slot, shared, self.lengths[source])
            self._tokens[slot, :shared] = self._tokens[source, :shared]
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
        for slot in (common >= MIN_SHARED_TOKENS).nonzero()[0].tolist():
            common[slot] = self.store.usable(slot, int(common[slot]), self.lengths[slot])
        slot = int(common.argmax())
        shared = int(common[slot])
        return Prefix(slot, shared) if shared >= MIN_SHARED_TOKENS else Prefix(0, 0)

    def num_shared(self, num_slots: int) -> int:
        """Tokens with which the first slots begin alike, made with one adapter or none."""
        if not num_slots or len(set(self._adapters[:num_slots])) > 1:
            return 0
        shortest = min(self.lengths[:num_slots])
        first = self._tokens[0, :shortest]
        # Of tokens that are not known any more, nothing is known to be alike.
        differs = (self._tokens[:num_slots, :shortest] != first) | (first == NO_TOKEN)
        ends = differs.any(0)
        return int(ends.argmax()) if ends.any() else shortest

    def tokens(self, slot: int) -> list[int]:
        """Those that the slot has computed."""
        return self._tokens[slot, : self.lengths[slot]].tolist()

    def extend(self, new_ids: list[list[int]]) -> None:
        """Note which tokens a pass has computed, in the slots from the first on."""
        for slot, ids in enumerate(new_ids):
            end = self.lengths[slot] + len(ids)
            self._tokens[slot, self.lengths[slot] : end] = ids
            self.lengths[slot] = end

    def swap(self, a: int, b: int) -> None:
        if a == b:
            return
        self.store.swap(a, b, self.lengths[a], self.lengths[b])
        longest = max(self.lengths[a], self.lengths[b])
        self._tokens[[a, b], :longest] = self._tokens[[b, a], :longest]
        for values in (self.lengths, self._last_used):
            values[a], values[b] = values[b], values[a]
        adapters = self._adapters
        adapters[a], adapters[b] = adapters[b], adapters[a]

    def release(self, slot: int) -> None:
        """Its request has ended; the KV may serve a later one."""
        self._clock += 1
        self._last_used[slot] = self._clock

    def forget_adapter(self, adapter: str) -> None:
        """No request runs with it: what is kept of those before serves none."""
        for slot in range(len(self.lengths)):
            if self._adapters[slot] == adapter:
                self._forget(slot)

    def forget(self, running: int = 0) -> None:
        """No KV of now serves a later request; the first `running` slots keep theirs to
        continue."""
        self._tokens.fill(NO_TOKEN)
        for slot in range(running, len(self.lengths)):
            self._forget(slot)

    def _forget(self, slot: int) -> None:
        self.lengths[slot] = 0
        self.store.forget(slot)
