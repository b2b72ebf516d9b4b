"""Which weights of a folder make which parameters, by transformers' own loading rules.

Files and models differ in names and in cuts: experts lie in a file each and in memory as one, a
composite model names its language part. There is no table by family here: transformers renames and
converts, forwards for a load and backwards for an export. Invariants: every parameter and
persistent buffer is made from the files, with its shape, and an export gives back the same names
and shapes, or the folder is refused from the headers alone; names that the model does not take are
known. Imported by `trainer.engines.fsdp.weights`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)

from mainspring.errors import ModelError
from mainspring.model_folder.config_file import where
from mainspring.model_folder.weights import read_weights
from trainer.engines.fsdp.adapters import is_part

DTYPES = ("F32", "BF16", "F16")
BELONG = "give the weights that belong to its config.json"


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Weights of files that are converted together, most often one to one."""

    first: str
    """Name of the first parameter that they make."""
    sources: tuple[tuple[str, str], ...]
    """Names in the files, each with the pattern of the conversion that it matches."""
    targets: tuple[str, ...]
    """Names of the parameters or buffers that they make."""


class FileNames:
    def __init__(self, lm: Any, model_dir: Path) -> None:
        """Raises ModelError naming the weight that does not fit."""
        self._lm = lm
        self._where = where(model_dir)
        every: dict[str, Tensor] = lm.state_dict(keep_vars=True)
        own = {name: weight for name, weight in every.items() if not is_part(name)}
        canonical: dict[int, str] = {}
        self.tied: dict[str, str] = {}
        """Second names of tied weights, each with the first one."""
        for name, weight in own.items():
            first = canonical.setdefault(id(weight), name)
            if first != name:
                self.tied[name] = first
        conversions: list[Any] = get_model_conversion_mapping(lm)
        self._converters = [c for c in conversions if isinstance(c, WeightConverter)]
        self._renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
        self._by_pattern = {p: c for c in self._converters for p in c.source_patterns}
        self._stored = read_weights(model_dir)
        self.groups, self.others = self._grouped(own)
        self._used = [c for c in conversions if c.was_used()]
        self._check(own)

    def of(self, model_dir: Path) -> "FileNames":
        """Those of another folder of the same model."""
        return FileNames(self._lm, model_dir)

    def first_copy(self, name: str) -> str | None:
        """Name in the files of the weight that `name`, a tied one, repeats; None: it is the only
        copy."""
        first = self.tied.get(name, name)
        found = [group.sources[0][0] for group in self.groups if group.first == first != name]
        return found[0] if found else None

    def read(self, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Every parameter and buffer of the model by name; `read` gives a weight of the files. Tied
        ones come by each of their names that the files have."""
        for group in self.groups:
            yield from self._converted(group, read).items()

    def written(self, group: WeightGroup, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights of files that a group's whole parameters make."""
        self._lm._weight_conversions = self._used  # as from_pretrained leaves them
        return revert_weight_conversion(self._lm, values)

    def dtype(self, name: str) -> torch.dtype:
        """Dtype in which a weight of the files is stored."""
        kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
        return kinds[self._stored[name].dtype]

    def _grouped(self, own: Mapping[str, Tensor]) -> tuple[tuple[WeightGroup, ...], list[str]]:
        sources: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        others: list[str] = []
        prefix, table = self._lm.base_model_prefix, dict(own)
        for name in sorted(self._stored, key=dot_natural_key):
            renamed, pattern = rename_source_key(
                name, self._renamings, self._converters, prefix, table
            )
            if renamed not in own and name in own:
                renamed, pattern = rename_source_key(name, [], [], prefix, table)
            if renamed in own:
                sources[renamed].append((name, pattern or name))
            else:
                others.append(name)
        groups = []
        for first, of_files in sources.items():
            group = WeightGroup(first, tuple(of_files), ())
            made = self._converted(group, self._header)
            groups.append(WeightGroup(first, group.sources, tuple(made)))
        return tuple(groups), others

    def _converted(self, group: WeightGroup, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Raises ModelError for weights that do not fit each other."""
        (name, pattern), *rest = group.sources
        converter = self._by_pattern.get(pattern)
        if converter is None:
            if rest:
                raise ModelError(
                    f"{self._where}: weights {name} and {rest[0][0]} are both {group.first}",
                    remedy=BELONG,
                )
            return {group.first: read(name)}
        conversion: Any = deepcopy(converter)
        for name, pattern in group.sources:
            conversion.add_tensor(group.first, name, pattern, read(name))
        try:
            made = conversion.convert(group.first, model=self._lm, config=self._lm.config)
        except (RuntimeError, ValueError, IndexError, KeyError) as error:
            raise self._not_converted(group, error) from None
        return {n: w[0] if isinstance(w, list) else w for n, w in made.items()}

    def _header(self, name: str) -> Tensor:
        stored = self._stored[name]
        if stored.dtype not in DTYPES:
            raise ModelError(
                f"weights {stored.file}: weight {name} is stored as {stored.dtype}, expected one "
                f"of {', '.join(DTYPES)}",
                remedy="use the weights in bfloat16, float16 or float32",
            )
        return torch.empty(stored.shape, dtype=self.dtype(name), device="meta")

    def _check(self, own: Mapping[str, Tensor]) -> None:
        made: dict[str, Tensor] = {}
        for group in self.groups:
            shapes = self._converted(group, self._header)
            made |= shapes
            self._check_way_back(group, shapes)
        filled = {self.tied.get(name, name) for name in made}
        for name in own:
            if self.tied.get(name, name) not in filled:
                raise ModelError(
                    f"{self._where}: no weight of the files makes {name}, which its config.json "
                    "describes",
                    remedy=BELONG,
                )
        for name, weight in made.items():
            if name not in own or weight.shape != own[name].shape:
                expected = list(own[name].shape) if name in own else "no such weight"
                raise ModelError(
                    f"{self._where}: weight {name} has the shape {list(weight.shape)}, expected "
                    f"{expected} as its config.json describes it",
                    remedy=BELONG,
                )

    def _check_way_back(self, group: WeightGroup, shapes: dict[str, Tensor]) -> None:
        """An export must have the names and shapes of the source."""
        try:
            back = self.written(group, shapes)
        except (RuntimeError, ValueError, IndexError, KeyError) as error:
            raise self._not_converted(group, error) from None
        found = {name: tuple(weight.shape) for name, weight in back.items()}
        expected = {name: self._stored[name].shape for name, _ in group.sources}
        if found != expected:
            differ = sorted(found.items() ^ expected.items())[:3]
            raise ModelError(
                f"{self._where}: {group.first} would be exported under other names or shapes than "
                f"the source has: {differ}",
                remedy="save the model again with transformers' save_pretrained(directory)",
            )

    def _not_converted(self, group: WeightGroup, error: Exception) -> ModelError:
        names = [name for name, _ in group.sources]
        return ModelError(
            f"{self._where}: transformers cannot convert the weights {names[:3]} to {group.first} "
            f"and back: {error}",
            remedy=BELONG,
        )
