"""Fields of a training campaign that earlier versions had under other names.

Invariants: nothing is dropped without a note that has the old name, the new one and the value; a
field given under both names keeps the new one. Pure; read by files of people and by what is stored.
"""

from collections.abc import Callable
from typing import Any

from mainspring.config.training.algorithm import Std


def renamed(
    raw: dict[str, Any], *, old_max_gap: float | None = None
) -> tuple[dict[str, Any], list[str]]:
    """`raw` under today's names, and a note for each field that had another one. `old_max_gap`: the
    value of `trainer.max_logprob_gap` that was only a default."""
    notes: list[str] = []
    changed = dict(raw)
    agent = _section(raw, "agent", "short_prompts")
    if agent is not None:
        short = agent.pop("short_prompts")
        if short:
            agent.setdefault("kind", "bundled")
            notes.append('agent.short_prompts is called agent.kind now: read as kind = "bundled"')
        else:
            notes.append("agent.short_prompts is no field any more: false is what it was without")
        changed["agent"] = agent
    for old, read in (("max_logprob_gap", _gap(old_max_gap)), ("normalize_std", _std)):
        trainer = _section(changed, "trainer", old)
        if trainer is not None:
            name, value = read(trainer.pop(old))
            if value is not None:
                trainer.setdefault(name.partition(".")[0], value)
            now = f"read as {value}" if value is not None else "its default is the same"
            notes.append(f"trainer.{old} is called trainer.{name} now: {now}")
            changed["trainer"] = trainer
    return changed, notes


def _section(raw: dict[str, Any], name: str, old: str) -> dict[str, Any] | None:
    """A copy of the section, where it has the old field."""
    section = raw.get(name)
    return dict(section) if isinstance(section, dict) and old in section else None


def _gap(default: float | None) -> Callable[[Any], tuple[str, Any]]:
    return lambda old: ("gap.max", None if old is None or old == default else {"max": old})


def _std(old: Any) -> tuple[str, Any]:
    return "std", None if old else Std.NONE.value
