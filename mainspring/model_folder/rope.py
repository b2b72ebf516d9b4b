"""Which rotary embeddings of a config.json can be trained, and which the CPU engine serves.

Kinds are judged before anything is looked up by them. The old keys (`rope_scaling`, `rope_theta`,
`type`) and those of transformers 5 (`rope_parameters`) are read as transformers reads them; where a
config gives both and they disagree, it is refused: engines differ in which one they take.
Imported by `refusals`.
"""

from collections.abc import Iterator
from typing import Any

from mainspring.model_folder.families import is_number, is_whole

TRAINED = ("default", "linear", "llama3")
SERVED = (*TRAINED, "yarn", "proportional")
"""Frequencies that do not depend on what else is computed in a pass."""
REMEDY = f"use a model whose rope_type is {', '.join(TRAINED[:-1])} or {TRAINED[-1]}"
_NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
}
_BESIDES_KIND = ("rope_theta", "type", "rope_type")


def kinds(config: dict[str, Any]) -> Iterator[object]:
    """Every rope_type that the config names, also one for a kind of layers; unchecked."""
    for name in ("rope_scaling", "rope_parameters"):
        table = config.get(name)
        if not isinstance(table, dict):
            continue
        nested = [value for value in table.values() if isinstance(value, dict)]
        for part in (table, *nested):
            kind = part.get("rope_type", part.get("type"))
            if kind is not None:
                yield kind


def broken(config: dict[str, Any]) -> Iterator[str]:
    """Things in a trained family that not all programs read in one way."""
    old, new = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    if old and new and _without_theta(old) != _without_theta(new):
        yield "rope_scaling and rope_parameters differ"
    table = old or new
    if nested := [name for name, value in table.items() if isinstance(value, dict)]:
        yield f"rope_parameters are given for each kind of layers ({', '.join(nested)})"
    first, second = table.get("rope_type"), table.get("type")
    if first is not None and second is not None and first != second:
        yield f"rope_type = {first!r} and type = {second!r} differ"
    thetas = [holder["rope_theta"] for holder in (config, table) if "rope_theta" in holder]
    for theta in thetas:
        if not is_number(theta) or theta <= 0:
            yield f"rope_theta = {theta!r}, expected a number above 0"
    if len(set(map(repr, map(_as_float, thetas)))) > 1:
        yield f"rope_theta = {thetas[0]!r} and, in its rope parameters, {thetas[1]!r} differ"
    kind = _kind(table)
    if not isinstance(kind, str):
        yield f"rope_type = {kind!r}, expected a text"
        return
    wrong = [
        problem for name in _NEEDED.get(kind, ()) for problem in _wrong_number(table, name, kind)
    ]
    yield from wrong
    if kind == "llama3" and not wrong:
        if table["high_freq_factor"] <= table["low_freq_factor"]:
            yield "high_freq_factor of rope_type 'llama3' is not above its low_freq_factor"
        outer = config.get("original_max_position_embeddings")
        inner = table["original_max_position_embeddings"]
        if not is_whole(inner):
            yield f"original_max_position_embeddings = {inner!r}, expected a whole number above 0"
        if outer is not None and outer != inner:
            yield (
                f"original_max_position_embeddings = {outer!r} and, in its rope parameters, "
                f"{inner!r} differ"
            )


def unserved(config: dict[str, Any]) -> Iterator[str]:
    """Things in any model that the CPU engine cannot serve."""
    for kind in kinds(config):
        if not isinstance(kind, str) or kind not in SERVED:
            yield f"rope_type {kind!r}"


def has_sections(config: dict[str, Any]) -> bool:
    """Whether parts of a head rotate by other positions, as those of a picture: all are the same in
    a text."""
    return any(where.get("mrope_section") for where in (config, *_tables(config)))


def partial(config: dict[str, Any]) -> object | None:
    """A share of the head that is rotated, other than all of it."""
    for where in (config, *_tables(config)):
        share = where.get("partial_rotary_factor")
        if share is not None and share != 1:
            return share
    return None


def _tables(config: dict[str, Any]) -> list[dict[str, Any]]:
    tables = [config.get(name) for name in ("rope_scaling", "rope_parameters")]
    return [table for table in tables if isinstance(table, dict)]


def _kind(table: dict[str, Any]) -> object:
    kind = table.get("rope_type")
    return table.get("type", "default") if kind is None else kind


def _without_theta(table: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in table.items() if name not in _BESIDES_KIND}
    return rest | {"rope_type": _kind(table)}


def _wrong_number(table: dict[str, Any], name: str, kind: str) -> Iterator[str]:
    if name not in table:
        yield f"rope_type {kind!r} without {name}"
    elif not is_number(table[name]) or table[name] <= 0:
        yield f"{name} = {table[name]!r} of rope_type {kind!r}, expected a number above 0"


def _as_float(value: object) -> object:
    return float(value) if is_number(value) else value  # type: ignore[arg-type]
