"""Policy versions as adapters beside the frozen model that an engine keeps (publish = "adapter").

Invariants: an adapter is named after its version's label, which stands for one content; an engine
gets the label only when its adapter is loaded and its frozen model is the campaign's; one that may
hold another model is given version 0's files first. A request names the adapter that it wants, so
all its tokens have one version, and versions change without a pause. Used by the client.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from infra.policy.engines.loading import Checksums, load_from_disk
from infra.policy.engines.reply_stream import Piece
from infra.policy.engines.wire import OnPiece, Wire
from infra.policy.weight_label import WeightLabel
from mainspring.artifacts.adapter_files import adapter_of
from mainspring.errors import EngineError

FIRST = WeightLabel(0)
KEPT = 4
"""Older adapters that stay loaded. SGLang removes one when the last request with it has ended, and
loads none meanwhile: one so old has none left."""
IsOurs = Callable[[WeightLabel], Awaitable[bool]]
_log = structlog.get_logger(__name__)


class AdapterLoading:
    def __init__(self, model: Path, is_ours: IsOurs) -> None:
        """`model`: frozen, of version 0; `is_ours`: whether a label is the campaign's."""
        self._model = model
        self._is_ours = is_ours
        self._checksums = Checksums()

    async def holds(self, info: dict[str, Any], version: Path, label: WeightLabel) -> bool:
        return await self._checksums.agree(info, self._model, FIRST)

    def check(self, version: Path, label: WeightLabel) -> None:
        if label.version > 0:
            adapter_of(version)

    async def load(
        self, wire: Wire, engine: str, info: dict[str, Any], version: Path, label: WeightLabel
    ) -> None:
        served = WeightLabel.parse(str(info.get("weight_version")))
        if label.version == 0 or not await self._has_model(info, served):
            first = label if label.version == 0 else FIRST
            await load_from_disk(wire, engine, info, self._model, first)
        if label.version == 0:
            return
        loaded = await loaded_at(wire, engine)
        if str(label) not in loaded:
            folder = str(adapter_of(version).absolute())
            await wire.post(
                engine, "/load_lora_adapter", {"lora_name": str(label), "lora_path": folder}
            )
        await wire.post(
            engine,
            "/update_weight_version",
            {"new_version": str(label), "abort_all_requests": False},
        )
        for name in old_ones(loaded - {str(label), str(served)}):
            await _unload(wire, engine, name)

    async def _has_model(self, info: dict[str, Any], served: WeightLabel | None) -> bool:
        """For sure: the bare number 0 may be that of any model that an engine was started with."""
        if served is None or (served == FIRST and info.get("weights_digest") is None):
            return False
        is_named_so = served == FIRST or await self._is_ours(served)
        return is_named_so and await self._checksums.agree(info, self._model, FIRST)

    def adapter(self, label: WeightLabel) -> str | None:
        return str(label) if label.version > 0 else None


def under(adapter: str | None, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer with the version of the adapter that made it: an engine names the version that was
    the newest meanwhile, whichever adapter the request had."""
    meta = answer.get("meta_info")
    if adapter is None or not isinstance(meta, dict):
        return answer
    span = {"version": adapter, "start": 0, "end": len(answer.get("output_ids") or ())}
    return answer | {"meta_info": meta | {"weight_version": adapter, "weight_versions": [span]}}


def of_adapter(adapter: str, on_piece: OnPiece) -> OnPiece:
    """The same for what is streamed."""
    return lambda engine, piece: on_piece(engine, Piece(piece.start, under(adapter, piece.answer)))


async def loaded_at(wire: Wire, engine: str) -> set[str]:
    """Names of the campaigns' adapters."""
    cards = (await wire.call(engine, "GET", "/v1/models")).get("data") or []
    names = {str(card.get("id")) for card in cards}
    return {name for name in names if WeightLabel.parse(name)}


def old_ones(names: set[str]) -> list[str]:
    """All but the KEPT newest."""
    labels = [label for name in names if (label := WeightLabel.parse(name))]
    return [str(label) for label in sorted(labels, key=lambda label: label.version)[:-KEPT]]


async def _unload(wire: Wire, engine: str, name: str) -> None:
    try:
        await wire.post(engine, "/unload_lora_adapter", {"lora_name": name})
    except EngineError as error:
        # The version that was to be loaded is served; the next one removes what is left.
        _log.warning(
            "an old adapter stays loaded", engine=engine, adapter=name, reason=error.message
        )
