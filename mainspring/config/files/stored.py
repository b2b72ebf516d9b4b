"""A configuration as an earlier version of Mainspring stored it, read by this one.

A stored configuration is never rewritten: what was renamed since is translated when it is read.
Processes of an older version may run beside this one: they read what this one stores, as long as it
uses no field that they do not know. A field that this version does not know is one of a newer
version: work on such a campaign waits for one of its processes, and does not end it.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from mainspring.config.any_run import AnyRun, read_run
from mainspring.config.evaluations.task_slice import TaskSlice
from mainspring.config.files.renamed import renamed
from mainspring.config.section import BUNDLED, Added
from mainspring.config.training.parallel import PLAIN, Device
from mainspring.errors import ConfigError, DatabaseError
from mainspring.status import CampaignKind

RESUMED_ON = "resumed_on"
"""Beside the configuration of a campaign that lacks a device: the one that it was resumed on."""
_OLD_MAX_GAP = 1e-3
"""Default of `trainer.max_logprob_gap`, where it was a field."""
_OF_RUN = {
    CampaignKind.TRAIN: frozenset[str](),
    CampaignKind.EVAL: frozenset(TaskSlice.model_fields),
    CampaignKind.VERIFY: frozenset({*TaskSlice.model_fields, "players", "exploits"}),
    CampaignKind.REGRADE: frozenset({"of", "split"}),
    CampaignKind.SFT: frozenset[str](),
}
"""Fields that each kind used of the section `run`, when all kinds had every section."""


def read_row(campaign: str, kind: CampaignKind, raw: dict[str, Any]) -> AnyRun:
    """The configuration of a stored campaign. Raises DatabaseError, which is tried again, for one
    with a field that this version does not know, and ConfigError for any other fault."""
    try:
        return read_stored(kind, raw)
    except ValidationError as error:
        fault = error.errors()[0]
        # The first part is the kind.
        field = ".".join(map(str, fault["loc"][1:]))
        told = f"campaign {campaign} was stored by another version: {field}: {fault['msg']}"
        if fault["type"] == "extra_forbidden":
            raise DatabaseError(
                told,
                remedy="install the version of Mainspring that stored it here as well; until then "
                "its other processes do this work",
            ) from None
        raise ConfigError(told, remedy="use the version of Mainspring that made it") from None


def read_stored(kind: CampaignKind, raw: dict[str, Any]) -> AnyRun:
    """Raises pydantic's ValidationError for what cannot be translated."""
    if kind is CampaignKind.SFT:
        return read_run(kind, raw)
    raw, _ = renamed(raw, old_max_gap=_OLD_MAX_GAP)
    current = _of_its_kind(kind, raw)
    if kind is CampaignKind.TRAIN:
        current["trainer"] = _trainer(raw)
    return read_run(kind, current)


def stored_form(config: BaseModel) -> dict[str, Any]:
    """The configuration as it is stored, without new fields that are at their defaults."""
    return _without_unused(config, config.model_dump(mode="json"))


def _without_unused(section: BaseModel, dumped: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(dumped)
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        is_default = value == field.get_default(call_default_factory=True)
        if Added.SINCE in field.metadata and is_default:
            kept.pop(name, None)
        elif name in kept:
            kept[name] = _parts_without_unused(value, kept[name])
    return kept


def _parts_without_unused(value: Any, dumped: Any) -> Any:
    if isinstance(value, BaseModel) and isinstance(dumped, Mapping):
        return _without_unused(value, dumped)
    if isinstance(value, Mapping) and isinstance(dumped, Mapping):
        return {key: _parts_without_unused(value.get(key), each) for key, each in dumped.items()}
    if isinstance(value, list | tuple) and isinstance(dumped, list):
        return [_parts_without_unused(*pair) for pair in zip(value, dumped, strict=True)]
    return dumped


def lacks_device(kind: CampaignKind, raw: dict[str, Any]) -> bool:
    """Whether a campaign was stored before it had a device: it trained on what its machine had."""
    return kind is CampaignKind.TRAIN and "device" not in raw.get("trainer", {})


def _of_its_kind(kind: CampaignKind, raw: dict[str, Any]) -> dict[str, Any]:
    """Without the sections of other kinds, which earlier versions stored with every run."""
    current = {name: value for name, value in raw.items() if name not in ("run", RESUMED_ON)}
    current |= {name: raw["run"][name] for name in _OF_RUN[kind] & raw.get("run", {}).keys()}
    if kind is not CampaignKind.TRAIN:
        current.pop("trainer", None)
        evaluation = current.pop("evaluation", {})
        if "concurrency" in evaluation:
            current["concurrency"] = evaluation["concurrency"]
    return current


def _trainer(raw: dict[str, Any]) -> dict[str, Any]:
    trainer = dict(raw.get("trainer", {}))
    if trainer and "device" not in trainer:
        # The bundled model was trained wherever the trainer ran; others are mostly for GPUs.
        bundled = raw.get("policy", {}).get("model", BUNDLED) == BUNDLED
        trainer["device"] = raw.get(RESUMED_ON, Device.CPU if bundled else Device.CUDA)
    if trainer:
        trainer.setdefault("engine", PLAIN)  # the only one, before engines were chosen by device
    return trainer
