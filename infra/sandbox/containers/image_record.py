"""When each task image was last used on this node, and which of them were pulled for that.

One JSON file, replaced whole under a lock, so that the node's worker and commands run beside it may
both write. Losing it costs nothing but the order in which images are removed. Imported by `images`.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

EXACT_TO_S = 60.0
"""Finer times would not change which image is the least recently used, and cost a write each."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ImageUse:
    used_at: float
    """Seconds since the epoch, by this machine's clock."""
    pulled: bool
    """By us, so from somewhere it can be had again."""


class ImageRecord:
    def __init__(self, state_dir: Path) -> None:
        state_dir.mkdir(parents=True, exist_ok=True)
        self._file = state_dir / "images.json"
        self._lock = state_dir / "images.lock"
        self._noted: dict[str, float] = {}

    def note(self, image: str, *, pulled: bool = False) -> None:
        """The image is used now."""
        now = time.time()
        if not pulled and now - self._noted.get(image, 0.0) < EXACT_TO_S:
            return
        with self._changing() as uses:
            before = uses.get(image)
            uses[image] = ImageUse(now, pulled or (before is not None and before.pulled))
        self._noted[image] = now

    def forget(self, image: str) -> None:
        self._noted.pop(image, None)
        with self._changing() as uses:
            uses.pop(image, None)

    def read(self) -> dict[str, ImageUse]:
        """Every image ever used here and not forgotten."""
        try:
            return {
                image: ImageUse(**use) for image, use in json.loads(self._file.read_text()).items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            log.warning(
                "image record cannot be read; starting a new one", file=str(self._file), why=error
            )
            return {}

    @contextmanager
    def _changing(self) -> Iterator[dict[str, ImageUse]]:
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            uses = self.read()
            yield uses
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps({image: asdict(use) for image, use in uses.items()}))
            os.replace(new, self._file)
