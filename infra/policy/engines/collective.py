"""Weights from the trainer's ranks into all engines at once: SGLang's begin, update and end.

Invariants: from before the first bucket until the last has come and was compared, an engine's label
is that of no version, so nothing that it may hold in between is taken for one; only an update that
went well gives it the label. Whatever fails leaves files as the way: an engine whose label is none
gets its weights from them. It generates meanwhile, so that it does not stay paused where files
cannot be had: what it samples under a label that is none is refused. Only weights that differ from
the files leave it paused, with an error that is raised. Used by the activity that sends weights.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from infra.policy.engines.engine_weights import EngineWeights
from infra.policy.engines.paused import let_generate
from infra.policy.protocol import WeightsDiffer
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError, EngineUnreachable
from mainspring.training.sending import Bucket, Meeting

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def updating(
    weights: EngineWeights, engines: Sequence[str], directory: Path, label: WeightLabel
) -> AsyncIterator["EngineUpdate"]:
    """An update of those engines that answer and serve other weights than `directory` has, which
    are `label`; no other process loads weights meanwhile. Raises ModelError."""
    await asyncio.to_thread(weights.check, directory)
    async with weights.alone():
        num_ranks: dict[str, int] = {}
        for engine in engines:
            try:
                if not await weights.is_current(engine, directory, label):
                    num_ranks[engine] = await _num_ranks(weights, engine)
            except EngineUnreachable as error:
                _log.warning("an engine does not answer", engine=engine, reason=error.message)
        update = EngineUpdate(weights, num_ranks, directory, label)
        try:
            yield update
        except WeightsDiffer:
            raise  # it stays paused: what it holds is known to be wrong, and the campaign is told
        except BaseException:
            await asyncio.shield(update.give_up())
            raise
        finally:
            await update.leave()


async def _num_ranks(weights: EngineWeights, engine: str) -> int:
    info = await weights.wire.call(engine, "GET", "/server_info")
    for name in ("dp_size", "pp_size"):
        if info.get(name, 1) != 1:
            raise EngineError(
                f"policy engine {engine} runs with {name} = {info[name]}: over a process group "
                "SGLang takes weights with tensor parallelism alone",
                remedy='set policy.publish = "disk", or start the engine without it',
            )
    return int(info.get("tp_size", 1))


class EngineUpdate:
    """Engines on their way to one version, all at the same step."""

    def __init__(
        self,
        weights: EngineWeights,
        num_ranks: dict[str, int],
        directory: Path,
        label: WeightLabel,
    ) -> None:
        """`num_ranks`: of each engine."""
        self._weights = weights
        self._num_ranks = num_ranks
        self._directory = directory
        self._label = label
        self._groups: list[str] = []
        self._is_paused = False

    @property
    def engines(self) -> list[str]:
        return list(self._num_ranks)

    @property
    def num_ranks(self) -> int:
        return sum(self._num_ranks.values())

    async def join(self, meetings: Sequence[Meeting]) -> None:
        """Have every engine join every group. Raises EngineError, EngineUnreachable."""
        counts = list(self._num_ranks.values())
        offsets = {engine: 1 + sum(counts[:n]) for n, engine in enumerate(self._num_ranks)}
        for meeting in meetings:
            self._groups.append(meeting.group)
            await self._each(
                "/init_weights_update_group",
                lambda engine, meeting=meeting: {
                    "master_address": meeting.host,
                    "master_port": meeting.port,
                    "rank_offset": offsets[engine],
                    "world_size": self.num_ranks + 1,
                    "group_name": meeting.group,
                    "backend": meeting.backend,
                },
            )

    async def begin(self) -> None:
        """Requests of now are taken back, and later ones wait."""
        self._is_paused = True  # one that failed to answer, too, may be
        await self._each("/pause_generation", {"mode": "retract"})
        try:
            await self._each("/begin_weight_update", {})
        except EngineUnreachable:
            raise
        except EngineError as error:
            # SGLang keeps the update of a sender that is gone.
            _log.warning("an update was left open", reason=error.message)
            await self._each("/end_weight_update", {})
            await self._each("/begin_weight_update", {})
        await self._name(f"updating-{uuid.uuid4().hex[:8]}")

    async def take(self, buckets: Sequence[Bucket]) -> None:
        """Have every engine receive what is sent now."""
        for bucket in buckets:
            body = {"names": bucket.names, "dtypes": bucket.dtypes, "shapes": bucket.shapes}
            await self._each(
                "/update_weights_from_distributed", body | {"group_name": bucket.group}
            )

    async def finish(self) -> None:
        """All has come. Raises WeightsDiffer, and then no engine has the label."""
        await self._each("/end_weight_update", {})
        infos = await asyncio.gather(*(self._weights.info(engine) for engine in self.engines))
        for engine, info in zip(self.engines, infos, strict=True):
            await self._weights.compare(engine, info, self._directory, self._label)
        await self._compare_with_each_other(
            [
                engine
                for engine, info in zip(self.engines, infos, strict=True)
                if info.get("weights_digest") is None
            ]
        )
        await self._name(str(self._label))
        await self._together([let_generate(self._weights.wire, url) for url in self.engines])
        self._is_paused = False

    async def give_up(self) -> None:
        """After a failure: engines end the update and generate again. Publishing follows, which
        fails as StillPaused where that could not be had."""
        for engine in self.engines if self._is_paused else []:
            for ends in (
                self._weights.wire.post(engine, "/end_weight_update", {}),
                let_generate(self._weights.wire, engine),
            ):
                try:
                    await ends
                except EngineError as error:
                    _log.info("after a failed update", engine=engine, reason=error.message)

    async def _compare_with_each_other(self, engines: list[str]) -> None:
        """SGLang's checksum is of weights as it keeps them, which the files do not tell; engines of
        one layout that got the same weights have the same."""
        first_engines: dict[tuple[int, str], str] = {}
        for engine in engines if len(engines) > 1 else []:
            answer = await self._weights.wire.post(
                engine, "/weights_checker", {"action": "checksum"}
            )
            checksum = answer.get("per_engine_checksum")
            if not isinstance(checksum, str):
                continue
            first_engine = first_engines.setdefault((self._num_ranks[engine], checksum), engine)
            unlike = [
                first
                for (count, other_checksum), first in first_engines.items()
                if count == self._num_ranks[first_engine] and other_checksum != checksum
            ]
            if unlike:
                raise WeightsDiffer(
                    f"policy engines {unlike[0]} and {engine} were sent version "
                    f"{self._label.version}, and their weights differ by SGLang's checksum",
                    remedy="restart both, then start the campaign again; policy.publish = "
                    '"disk" does without the process group',
                )

    async def leave(self) -> None:
        """Engines forget the groups; one that is gone has done so."""
        for group in self._groups:
            try:
                await self._each("/destroy_weights_update_group", {"group_name": group})
            except EngineError as error:
                _log.info("a group was gone before it was left", reason=error.message)

    async def _name(self, version: str) -> None:
        body = {"new_version": version, "abort_all_requests": False}
        await self._each("/update_weight_version", body)

    async def _each(
        self, path: str, body: dict[str, Any] | Callable[[str], dict[str, Any]]
    ) -> None:
        """Post to all engines at once; raise the first failure, once all have ended."""
        calls = [
            self._weights.wire.post(engine, path, body(engine) if callable(body) else body)
            for engine in self._num_ranks
        ]
        await self._together(calls)

    async def _together(self, calls: Sequence[Awaitable[object]]) -> None:
        ends = await asyncio.gather(*calls, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
