"""Whether an engine holds the weights of a model directory, by checksum. Used by `loading`."""

import asyncio
from pathlib import Path
from typing import Any

from infra.policy.model.weight_files import weights_digest
from infra.policy.weight_label import WeightLabel


class Checksums:
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
