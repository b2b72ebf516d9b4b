"""The weights that engines serve: brought up to date from files, compared with them.

Invariants: an engine whose weights are the right ones is left alone; one that may hold others is
asked for nothing until it has the whole of the right ones under their label; what would kill an
engine, weights that are not whole, is not sent; after a load the engine generates again, whatever
happened, or the load has failed as StillPaused. Used by the client beside this file; `collective`
sends weights faster than files.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import structlog

from infra.policy.engines.loading import Loading, WholeModel
from infra.policy.engines.paused import let_generate
from infra.policy.engines.wire import Wire
from infra.policy.model.model_files import check_servable
from infra.policy.model.weight_files import check_same_weights
from infra.policy.protocol import NotReproducible, WeightsDiffer
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError

IsKnown = Callable[[WeightLabel], Awaitable[bool]]
_log = structlog.get_logger(__name__)


def served_label(info: dict[str, Any]) -> WeightLabel | None:
    """Label in an engine's answer to /model_info; None for weights that no campaign named."""
    return WeightLabel.parse(str(info.get("weight_version")))


class SameBits:
    """Whether a reproducible campaign's engines give equal bits, by what they tell of themselves.

    Which engine serves a reply depends on time: replies follow from the seed only where all engines
    are reproducible and have one stamp (`mainspring.artifacts.stamp`)."""

    def __init__(self) -> None:
        self._first: tuple[str, Any] | None = None
        """The engine that was asked first, and its stamp."""

    def check(self, engine: str, info: dict[str, Any]) -> None:
        """`info`: what the engine's /model_info answers. Raises NotReproducible."""
        if info.get("reproducible") is not True:
            raise NotReproducible(
                f"policy engine {engine} gives replies that depend on which requests run together, "
                'and the campaign has schedule = "reproducible"',
                remedy="start it with `mainspring serve --reproducible`, then start the campaign "
                'again; or start a new campaign with schedule = "fastest"',
            )
        stamp = info.get("stamp")
        first, expected = self._first = self._first or (engine, stamp)
        if stamp != expected:
            raise NotReproducible(
                f"policy engines {first} and {engine} compute other bits: {expected} and {stamp}",
                remedy="run all engines of a reproducible campaign on one kind of machine and one "
                "version, then start the campaign again",
            )


class EngineWeights:
    def __init__(
        self,
        wire: Wire,
        *,
        model: Path | None = None,
        is_known: IsKnown | None = None,
        reproducible: bool = False,
        alone: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        loading: Loading | None = None,
    ) -> None:
        """See EngineClient. `loading`: of whole models where None is given."""
        self.wire = wire
        self.alone = alone
        self._model = model
        self._is_known = is_known
        self._like = SameBits() if reproducible else None
        self._loading = loading or WholeModel()
        self._not_compared: set[str] = set()
        self._publishing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def info(self, engine: str) -> dict[str, Any]:
        return await self.wire.dialect.info(self.wire, engine)

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        """Make `engine` serve `label` unless it does already; True when weights were loaded.

        `label` must be the campaign's current one, read just before: this also replaces weights of
        a higher number, unless they are known as the campaign's. Concurrent calls load once. Raises
        ModelError before the engine is asked when `weights` are not whole or another model's, and
        NotReproducible.
        """
        async with self._publishing[engine]:
            if await self.is_current(engine, weights, label):
                return False
            await asyncio.to_thread(self.check, weights)
            await asyncio.to_thread(self._loading.check, weights, label)
            async with self.alone():
                # Another process may have loaded them while this one waited, or newer ones.
                if await self.is_current(engine, weights, label):
                    return False
                if await self._is_overtaken(engine, label):
                    return False
                await self._load(engine, weights, label)
            return True

    async def is_current(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        info = await self.info(engine)
        if self._like is not None:
            self._like.check(engine, info)
        served = served_label(info)
        if not (
            served and served.can_be(label) and await self._loading.holds(info, weights, label)
        ):
            return False
        # The process that loaded it may have died before this.
        await let_generate(self.wire, engine)
        return True

    async def _is_overtaken(self, engine: str, label: WeightLabel) -> bool:
        """Whether it serves a newer version of the campaign, which is as good: not where a group
        has one version."""
        if self._like is not None or self._is_known is None:
            return False
        served = served_label(await self.info(engine))
        if served is None or served.version <= label.version:
            return False
        return await self._is_known(served)

    async def _load(self, engine: str, weights: Path, label: WeightLabel) -> None:
        await self._loading.load(self.wire, engine, await self.info(engine), weights, label)
        info = await self.info(engine)
        if served_label(info) != label:
            raise EngineError(
                f"policy engine {engine} serves version {info.get('weight_version')} after "
                f"loading {label}",
                remedy="is another trainer publishing to the same engine?",
            )
        await self.compare(engine, info, weights, label)

    def check(self, weights: Path) -> None:
        """SGLang dies of a cut file, and takes missing or unknown names for a success."""
        check_servable(weights)
        if self._model is not None and weights != self._model:
            check_same_weights(weights, self._model)

    async def compare(
        self, engine: str, info: dict[str, Any], weights: Path, label: WeightLabel
    ) -> None:
        """Raises WeightsDiffer. `info`: what the engine answered after it had got `weights`."""
        if not await self._loading.holds(info, weights, label):
            raise WeightsDiffer(
                f"policy engine {engine} loaded version {label.version}, and its weights "
                f"differ from those in {weights} by checksum",
                remedy="restart the engine; is another trainer publishing to it?",
            )
        if info.get("weights_digest") is None and engine not in self._not_compared:
            self._not_compared.add(engine)
            _log.info("weights not compared: the engine reports no checksum", engine=engine)
