"""Continuous batching: requests join and leave the running batch between any two tokens.

Invariants: `running[i]` owns slot i; every sequence handed to `submit` is resolved exactly once;
weights change only while nothing runs or while the engine is paused, between two steps, so a
token's version is exact; KV of older weights never serves another request; without memory of its
own, or before new weights have come into memory that it took again, nothing is generated.
Single-threaded and free of I/O: thread.py runs it, tests may step it by hand.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from torch import Tensor

from engine.model.served_model import ServedModel
from engine.model.slots import SLOTS_PER_RUNNING
from engine.sampling import sample
from engine.sequences import Sequence
from mainspring.errors import ModelError

MAX_PREFILL_TOKENS = 4096
"""New prompt tokens of one step; a longer prompt goes alone."""
WORTH_SHARING_TOKENS = 32
"""A request waits one step when another, joining now, computes so much of its prompt."""


class PauseMode(StrEnum):
    ABORT = "abort"
    """Requests in flight end with what they have."""
    RETRACT = "retract"
    """Requests in flight go back to the queue and recompute their KV when generation continues."""
    IN_PLACE = "in_place"
    """Requests in flight stop and resume later on the KV they have."""


class MemoryTag(StrEnum):
    """Parts of its memory that an engine can give away; SGLang's tags."""

    KV_CACHE = "kv_cache"
    WEIGHTS = "weights"


GIVEN_AWAY = "released"
"""Label of an engine that has given the memory of its weights away: that of no version."""


@dataclass(slots=True)
class _Update:
    directory: Path
    version: str | None
    flush_cache: bool
    done: "Future[None]"


class Scheduler:
    def __init__(self, model: ServedModel, *, weight_version: str, max_batch: int) -> None:
        self.model = model
        self.weight_version = weight_version
        self.max_batch = max_batch
        self.paused = False
        self._paused_at = 0.0
        self.is_updating = False
        """Weights arrive over a process group; nothing is generated meanwhile."""
        self._version_before: str | None = None
        """While weights arrive: the label of those that are served."""
        self.num_generated_tokens = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        """Since the start, also of requests that were aborted."""
        self.pool = model.pool(SLOTS_PER_RUNNING * max_batch)
        self.released: frozenset[MemoryTag] = frozenset()
        """Memory that was given away."""
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._held: list[Sequence] = []
        """Submitted while a weight update waits for the requests before it."""
        self._updates: deque[_Update] = deque()

    @property
    def num_queued(self) -> int:
        return len(self.waiting) + len(self._held)

    @property
    def busy(self) -> bool:
        return self.generates and bool(self.running or self.waiting)

    @property
    def generates(self) -> bool:
        """Whether requests that come are answered, and not kept."""
        return not (self.paused or self.is_updating or self.is_empty)

    @property
    def is_empty(self) -> bool:
        """Whether it lacks memory, or the weights in it."""
        return bool(self.released) or not self.model.has_weights

    @property
    def paused_s(self) -> float | None:
        """For so long it is paused; None when it is not."""
        return time.monotonic() - self._paused_at if self.paused else None

    def submit(self, sequence: Sequence) -> None:
        (self._held if self._updates else self.waiting).append(sequence)

    def step(self) -> None:
        """Admit what fits, then one token for every running request."""
        num_decoding = len(self.running)
        self._admit()
        new_ids = [
            sequence.ids[length:]
            for sequence, length in zip(self.running, self.pool.lengths, strict=False)
        ]
        adapters = [sequence.adapter for sequence in self.running]
        logits = self.model.forward(self.pool, new_ids, num_decoding, adapters)
        for sequence, token, logprob in zip(
            self.running, *sample(logits, self.running), strict=True
        ):
            sequence.append(token, logprob, self.weight_version)
        self.num_generated_tokens += len(self.running)
        for slot in reversed(range(len(self.running))):
            if self.running[slot].finish_reason is not None:
                self._leave(slot).resolve()
        self._apply_updates()

    def _admit(self) -> None:
        budget = MAX_PREFILL_TOKENS
        joining: set[tuple[str | int | None, ...]] = set()
        passed_over: list[Sequence] = []
        while self.waiting and len(self.running) < self.max_batch:
            sequence = self.waiting.popleft()
            prefix = self.pool.longest_prefix(sequence.ids, sequence.adapter)
            beginning = (sequence.adapter, *sequence.ids[: prefix.length + WORTH_SHARING_TOKENS])
            if beginning in joining:
                passed_over.append(sequence)
                continue
            budget -= len(sequence.ids) - prefix.length
            if budget < 0 and joining:
                passed_over.append(sequence)
                break
            self.pool.occupy(len(self.running), prefix, sequence.adapter)
            sequence.cached_tokens = prefix.length
            self.num_prompt_tokens += len(sequence.ids)
            self.num_cached_tokens += prefix.length
            self.running.append(sequence)
            joining.add(beginning)
        self.waiting.extendleft(reversed(passed_over))

    def _leave(self, slot: int) -> Sequence:
        """Take the sequence off slot `slot`; the last running one closes the gap."""
        last = len(self.running) - 1
        self.running[slot], self.running[last] = self.running[last], self.running[slot]
        self.pool.swap(slot, last)
        self.pool.release(last)
        return self.running.pop()

    def pause(self, mode: PauseMode) -> None:
        if not self.paused:
            self._paused_at = time.monotonic()
        self.paused = True
        if mode is PauseMode.ABORT:
            self.abort(lambda sequence: True)
        elif mode is PauseMode.RETRACT:
            self._retract()
        self._apply_updates()

    def _retract(self) -> None:
        retracted = [self._leave(slot) for slot in reversed(range(len(self.running)))]
        for sequence in retracted:
            sequence.num_retractions += 1
            self.waiting.appendleft(sequence)
        self.pool.forget()

    def resume(self) -> None:
        self.paused = False

    def release_memory(self, parts: frozenset[MemoryTag]) -> bool:
        """Give memory away; requests wait until it is taken again. False while requests run."""
        if self.is_updating or (self.running and not self.paused):
            return False
        self._retract()
        if MemoryTag.KV_CACHE in parts - self.released:
            self.pool = self.model.pool(1)  # lookups need one
        if MemoryTag.WEIGHTS in parts - self.released:
            self.model.drop_weights()
            self.weight_version = GIVEN_AWAY
        self.released |= parts
        self.model.free_unused()
        return True

    def resume_memory(self, parts: frozenset[MemoryTag]) -> None:
        """Take memory again. Raises ModelError where it is not free, and then nothing has changed.
        What was in it is lost: weights have to come before anything is generated."""
        if MemoryTag.KV_CACHE in parts & self.released:
            self.pool = self.model.pool(SLOTS_PER_RUNNING * self.max_batch)
        if MemoryTag.WEIGHTS in parts & self.released:
            self.model.make_room()
        self.released -= parts

    def abort(self, chosen: Callable[[Sequence], bool]) -> None:
        """End the chosen requests in flight with what they have."""
        for slot in reversed(range(len(self.running))):
            if chosen(self.running[slot]):
                self._leave(slot).abort()
        for queue in (self.waiting, self._held):
            for sequence in [queued for queued in queue if chosen(queued)]:
                queue.remove(sequence)
                sequence.abort()
        self._apply_updates()

    def flush(self) -> bool:
        """Forget all cached prefixes; False while requests are in flight."""
        if self.running or self.num_queued:
            return False
        self.pool.forget()
        return True

    def update_weights(
        self, directory: Path, version: str | None, *, flush_cache: bool, abort_all: bool
    ) -> "Future[None]":
        """Resolves when the weights are served, with ModelError when they do not fit. Waits for
        the requests in flight unless the engine is paused; requests submitted after it wait."""
        update = _Update(directory, version, flush_cache, Future())
        self._updates.append(update)
        if abort_all:
            self.abort(lambda sequence: True)
        self._apply_updates()
        return update.done

    def begin_update(self) -> bool:
        """Generate nothing until the update is over; False unless paused, with no request on keys
        and values of the weights of now."""
        self.is_updating = self.paused and not self.running
        self._version_before = self.weight_version
        return self.is_updating

    def end_update(self, weights: dict[str, Tensor]) -> None:
        """Take weights that have all come; the update is over when they get their label. Raises
        ModelError, and then nothing has changed."""
        try:
            self.model.take_weights(weights)
        except ModelError:
            self.drop_update(resume=False)
            raise
        self._version_before = None
        self.pool.forget()

    def set_version(self, version: str) -> None:
        self.weight_version = version
        if self._version_before is None:
            self.is_updating = False

    def drop_update(self, *, resume: bool) -> None:
        """An update will not end. Weights that have not all come are not served, so those of before
        are, under their label. `resume`: generate, though its sender has left the engine paused."""
        if not self.is_updating:
            return
        self.is_updating = False
        self.weight_version = self._version_before or self.weight_version
        self.paused = self.paused and not resume

    def remove_adapter(self, name: str) -> bool:
        """False while a request in flight has it."""
        if any(
            sequence.adapter == name for sequence in (*self.running, *self.waiting, *self._held)
        ):
            return False
        self.model.adapters.remove(name)
        self.pool.forget_adapter(name)
        return True

    def _apply_updates(self) -> None:
        while self._updates and (
            self.paused or self.is_empty or not (self.running or self.waiting)
        ):
            update = self._updates.popleft()
            try:
                self._apply(update)
            except Exception as error:  # also out of memory: the weights of before are served
                update.done.set_exception(error)
            else:
                update.done.set_result(None)
            if not self._updates:
                self.waiting.extend(self._held)
                self._held.clear()

    def _apply(self, update: _Update) -> None:
        if self.running and update.flush_cache:
            raise ModelError(
                f"weights were not updated: the cache cannot be flushed while {len(self.running)} "
                "requests are paused in place",
                remedy="pause with mode retract, or send flush_cache: false",
            )
        self.model.load_weights(update.directory)
        if update.version is not None:
            self.weight_version = update.version
        self.pool.forget(len(self.running))

    def fail(self, error: Exception) -> None:
        """Fail all requests with the error that ended the engine."""
        sequences = [*self.running, *self.waiting, *self._held]
        for future in (*(s.done for s in sequences), *(u.done for u in self._updates)):
            # Those resolved before the failure keep their answer.
            if not future.done() and future.set_running_or_notify_cancel():
                future.set_exception(error)
        for queue in (self.running, self.waiting, self._held, self._updates):
            queue.clear()
