"""Defaults that depend on another setting: what a method needs where the file does not set it.

Owns the table. Invariants: what a file sets is never changed; a stored configuration has every
field and is not touched, and a campaign that was stored with the general default keeps it
(`as_stored`). Imported by the sections whose fields it fills, by `pairs` and by the store.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationInfo

from mainspring.config.section import STORED

LORA_LR = 1e-5
"""AdamW's rate with adapters in a campaign, ten times that of full training: their B begins at 0,
and they have fewer weights. Source: J. Schulman et al., "LoRA Without Regret" (2025)."""
SUPERVISED_LORA_LR = 1e-4
"""The same in a supervised run."""


TrainerT = TypeVar("TrainerT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class MethodDefault:
    """Below [trainer]: where `setting` is one of `values`, `field` is `default`, unless it is
    set."""

    setting: str
    values: tuple[str, ...]
    field: str
    default: Any


TABLE = (
    # GSPO, arXiv 2507.18071, section 5.1: ratios of whole sequences stay this near to 1.
    MethodDefault("loss", ("gspo",), "clip_low", 3e-4),
    MethodDefault("loss", ("gspo",), "clip_high", 4e-4),
    MethodDefault("loss", ("gspo",), "aggregation", "seq_mean_token_mean"),
    # Groups of equal rewards are a part of the batch's mean, and a critic learns from them.
    MethodDefault("advantage", ("reinforce_plus_plus", "gae"), "filter", "none"),
    # A group in which all are solved is worth imitating.
    MethodDefault("advantage", ("raft",), "filter", "solved"),
    # The only estimator whose expected gradient is that of the divergence.
    MethodDefault("kl.where", ("reward",), "kl.estimator", "k1"),
)


def filled(raw: Any, info: ValidationInfo, lora_lr: float) -> Any:
    """The section [trainer], as a file has it, with what its methods need."""
    if not isinstance(raw, Mapping) or info.context == STORED:
        return raw
    trainer = dict(raw)
    for entry in TABLE:
        if _value(trainer, entry.setting) in entry.values:
            _fill(trainer, entry.field, entry.default)
    rank = _value(trainer, "lora.rank")
    if isinstance(rank, int) and rank > 0:
        _fill(trainer, "optimizer.lr", lora_lr)
    return trainer


def notes(trainer: BaseModel) -> list[str]:
    """For a plan: which values stand for a method, and are not the general default."""
    sentences = [
        f'trainer.{field} = {_shown(default)}, as {setting} = "{value}" has it'
        for setting, value, field, default in _of(trainer)
    ]
    if _has_lora_lr(trainer):
        sentences.append(f"trainer.optimizer.lr = {LORA_LR:g}, as adapters have it")
    return sentences


def as_stored(chosen: TrainerT, stored: TrainerT) -> TrainerT:
    """`chosen` with the general default of a field where the campaign was stored with it, before
    the method had a default of its own: a file that does not set it still names that campaign."""
    fields = [field for _, _, field, _ in _of(chosen)]
    fields += ["optimizer.lr"] if _has_lora_lr(chosen) else []
    for field in fields:
        section, _, name = field.rpartition(".")
        inner = _value(chosen, section) if section else chosen
        before = _value(stored, field)
        if before == type(inner).model_fields[name].default:
            changed = inner.model_copy(update={name: before})
            chosen = chosen.model_copy(update={section: changed}) if section else changed
    return chosen


def _of(trainer: BaseModel) -> Iterator[tuple[str, str, str, Any]]:
    """Setting and value that were chosen, the field, and the default that it has."""
    for entry in TABLE:
        value = _value(trainer, entry.setting)
        if value in entry.values and _value(trainer, entry.field) == entry.default:
            yield entry.setting, str(value), entry.field, entry.default


def _has_lora_lr(trainer: BaseModel) -> bool:
    return bool(_value(trainer, "lora.rank")) and _value(trainer, "optimizer.lr") == LORA_LR


def _value(trainer: Any, path: str) -> Any:
    """Value in a section as a file has it, or as it was checked."""
    for name in path.split("."):
        trainer = (
            trainer.get(name) if isinstance(trainer, Mapping) else getattr(trainer, name, None)
        )
    return trainer


def _fill(trainer: dict[str, Any], path: str, default: Any) -> None:
    section, _, name = path.rpartition(".")
    if not section:
        trainer.setdefault(name, default)
        return
    inner = trainer.get(section, {})
    if isinstance(inner, Mapping):
        trainer[section] = {name: default, **inner}
    elif name not in getattr(inner, "model_fields_set", {name}):
        trainer[section] = inner.model_copy(update={name: default})


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"
