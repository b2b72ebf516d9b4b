"""How a policy version gets into an engine: the seam between `engine_weights` and the two ways.

`WholeModel` replaces all weights from the version's files; `adapter_loading` keeps the frozen model
and adds the version's adapters. Used by `engine_weights` and the client.
"""

import asyncio
from pathlib import Path
from typing import Any, Protocol

from infra.policy.engines.dialects.lent_memory import take_back
from infra.policy.engines.paused import paused
from infra.policy.engines.wire import Wire
from infra.policy.model.weight_files import weights_digest
from infra.policy.weight_label import WeightLabel


class Loading(Protocol):
    async def holds(self, info: dict[str, Any], version: Path, label: WeightLabel) -> bool:
        """Whether an engine that answers `info` to /model_info has the weights in its memory that
        `version` needs; taken for granted where it cannot tell."""
        ...

    def check(self, version: Path, label: WeightLabel) -> None:
        """Raises ModelError before an engine is asked."""
        ...

    async def load(
        self, wire: Wire, engine: str, info: dict[str, Any], version: Path, label: WeightLabel
    ) -> None:
        """Make `engine`, whose /model_info is `info`, serve `version` as `label`. Idempotent, and
        the engine generates afterwards, whatever happened, or the failure is StillPaused. Raises
        EngineError."""
        ...

    def adapter(self, label: WeightLabel) -> str | None:
        """Name of the adapter that a request must give to be served by `label`."""
        ...


class Checksums:
    """Whether an engine holds the weights of a model directory."""

    def __init__(self) -> None:
        self._digests: dict[tuple[Path, WeightLabel], str | None] = {}

    async def agree(self, info: dict[str, Any], weights: Path, label: WeightLabel) -> bool:
        """`info`: an engine's /model_info. True where it cannot tell, as SGLang."""
        digest = info.get("weights_digest")
        if digest is None:
            return True
        # By the label as well: after a rollback other weights are at the same path.
        if (key := (weights, label)) not in self._digests:
            self._digests.clear()  # only the newest are published again
            self._digests[key] = await asyncio.to_thread(weights_digest, weights)
        return self._digests[key] in (None, digest)


class WholeModel:
    def __init__(self) -> None:
        self._checksums = Checksums()

    async def holds(self, info: dict[str, Any], version: Path, label: WeightLabel) -> bool:
        return await self._checksums.agree(info, version, label)

    def check(self, version: Path, label: WeightLabel) -> None:
        pass  # engine_weights checks whole models, which every version is

    async def load(
        self, wire: Wire, engine: str, info: dict[str, Any], version: Path, label: WeightLabel
    ) -> None:
        await load_from_disk(wire, engine, info, version, label)

    def adapter(self, label: WeightLabel) -> str | None:
        return None


async def load_from_disk(
    wire: Wire, engine: str, info: dict[str, Any], model: Path, label: WeightLabel
) -> None:
    """Requests in flight continue under the new weights, with their keys computed again; memory
    that was lent is taken back before. Raises StillPaused, EngineError."""
    # Not within the pause, which ends in any case: an engine without memory must not generate.
    await take_back(wire, wire.dialect, engine, str(info.get("weight_version")))
    async with paused(wire, engine):
        await wire.dialect.load(wire, engine, model, label)
