"""Defaults that depend on another setting: what a method needs where the file does not set it.

Owns the table. Invariants: what a file sets is never changed; a stored configuration has every
field and is not touched, and a campaign that was stored with the general default keeps it
(`as_stored`). Imported by the sections whose fields it fills, by `pairs` and by the store.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationInfo

from mainspring.config.section import STORED

if TYPE_CHECKING:
    from mainspring.config.campaign import CampaignConfig

LORA_LR = 1e-5
"""AdamW's rate with adapters in a campaign, ten times that of full training: their B begins at 0,
and they have fewer weights. Source: J. Schulman et al., "LoRA Without Regret" (2025)."""
SUPERVISED_LORA_LR = 1e-4
"""The same in a supervised run."""


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


def filled(given: Any, info: ValidationInfo, lora_lr: float) -> Any:
    """The section [trainer], as a file has it, with what its methods need."""
    if not isinstance(given, Mapping) or info.context == STORED:
        return given
    trainer = dict(given)
    for each in TABLE:
        if _value(trainer, each.setting) in each.values:
            _fill(trainer, each.field, each.default)
    rank = _value(trainer, "lora.rank")
    if isinstance(rank, int) and rank > 0:
        _fill(trainer, "optimizer.lr", lora_lr)
    return trainer


def notes(config: "CampaignConfig") -> list[str]:
    """For a plan: which values stand for a method, and are not the general default."""
    found = [
        f'trainer.{field} = {_shown(default)}, as {setting} = "{value}" has it'
        for setting, value, field, default in _of(config)
    ]
    lora = config.trainer.lora.rank
    if lora and config.trainer.optimizer.lr == LORA_LR:
        found.append(f"trainer.optimizer.lr = {config.trainer.optimizer.lr:g}, as adapters have it")
    return found


def as_stored(given: "CampaignConfig", stored: "CampaignConfig") -> "CampaignConfig":
    """`given` with the general default of a field where the campaign was stored with it, before the
    method had a default of its own: a file that does not set it still names that campaign."""
    fields: dict[str, Any] = {}
    for _, _, field, _ in _of(given):
        _take(fields, field, given, stored)
    if given.trainer.lora.rank and given.trainer.optimizer.lr == LORA_LR:
        _take(fields, "optimizer.lr", given, stored)
    sections = {name: each for name, each in fields.items() if isinstance(each, dict)}
    changed = fields | {
        name: getattr(given.trainer, name).model_copy(update=each)
        for name, each in sections.items()
    }
    return given.model_copy(update={"trainer": given.trainer.model_copy(update=changed)})


def _of(config: "CampaignConfig") -> Iterator[tuple[str, str, str, Any]]:
    """Setting and value that were chosen, the field, and the default that it has."""
    for each in TABLE:
        value = _value(config.trainer, each.setting)
        is_default = _value(config.trainer, each.field) == each.default
        if value in each.values and is_default:
            yield each.setting, str(value), each.field, each.default


def _take(
    fields: dict[str, Any], field: str, given: "CampaignConfig", stored: "CampaignConfig"
) -> None:
    before = _value(stored.trainer, field)
    section, _, name = field.rpartition(".")
    model = getattr(given.trainer, section) if section else given.trainer
    if before == type(model).model_fields[name].default:
        (fields.setdefault(section, {}) if section else fields)[name] = before


def _value(trainer: Any, path: str) -> Any:
    """Of a section as a file has it, or as it was checked."""
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
