"""Rows of a data set on the Hugging Face hub, read as a stream: nothing is kept on disk.

Imported by `resolve`. Needs the `datasets` package, which is loaded when rows are read.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from infra.sources.protocol import ImportOptions, Place, SourceRow
from infra.sources.rows import read_row
from mainspring.errors import ServiceError, UsageError

CONNECT_TIMEOUT_S = 10.0


class HubSource:
    def __init__(self, name: str, options: ImportOptions) -> None:
        self._name = name
        self._options = options

    def rows(self) -> Iterator[SourceRow]:
        for split, i, raw in self._raw():
            place = Place(f"{self._name}@{split}", i)
            row = read_row(raw, place, self._options, source=self._name, split=split)
            if row is not None:
                yield row

    def _raw(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        try:
            import datasets
            from datasets.exceptions import DatasetNotFoundError
            from huggingface_hub.errors import HfHubHTTPError
        except ImportError:
            raise UsageError(
                f"reading the data set {self._name} needs the `datasets` package",
                remedy="pip install 'mainspring[swe]'",
            ) from None
        chosen = self._options.split
        self._check_that_the_hub_answers()
        try:
            with _without_retry_lines():
                for split in [chosen] if chosen else datasets.get_dataset_split_names(self._name):
                    rows = datasets.load_dataset(self._name, split=split, streaming=True)
                    for i, row in enumerate(rows, start=1):
                        yield split, i, dict(row)
        except (DatasetNotFoundError, ValueError) as error:
            raise UsageError(
                f"data set {self._name}: {error}",
                remedy="check its name and --split; for a private one set HF_TOKEN",
            ) from None
        except (OSError, HfHubHTTPError) as error:
            raise self._unreachable(error) from None

    def _check_that_the_hub_answers(self) -> None:
        """The library tries for half a minute before it tells that nothing listens there."""
        from huggingface_hub import constants

        # The library takes a folder as it takes a name on the hub.
        if constants.HF_HUB_OFFLINE or Path(self._name).exists():
            return
        try:
            httpx.head(constants.ENDPOINT, timeout=CONNECT_TIMEOUT_S)
        except httpx.ConnectError as error:
            raise self._unreachable(f"{constants.ENDPOINT}: {error}") from None
        except httpx.HTTPError:
            return  # slow, or an answer of another kind: the library may fare better

    def _unreachable(self, why: object) -> ServiceError:
        return ServiceError(
            f"data set {self._name} cannot be read from the hub: {why}",
            remedy="check the network and HF_ENDPOINT, or download the data set's parquet "
            "files and import those",
        )


@contextmanager
def _without_retry_lines() -> Iterator[None]:
    """The library tells each try; what counts is the error at the end."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
