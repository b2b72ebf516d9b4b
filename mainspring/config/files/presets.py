"""Presets: named settings that make figures comparable with those of other programs.

Invariants: what the file or the command line gives wins over its preset; a preset is expanded
before the configuration is checked and stored, so a stored campaign never depends on a later
version of it.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

from mainspring.config.files.layers import Layered

ENDPOINTS_OWN_CONTEXT = 10_000_000
"""Tokens. More than any model has: the endpoint's own limit ends the rollout."""


class Preset(StrEnum):
    SWE_BENCH = "swe-bench"
    """The limits of mini-swe-agent's SWE-bench configuration: 250 turns, 60 s a command, 10,000
    characters of output, the model's own context; no limit on format errors and practically none
    on time."""


_SETTINGS: dict[Preset, dict[str, dict[str, Any]]] = {
    Preset.SWE_BENCH: {
        "agent": {
            "step_limit": 250,
            "max_format_errors": 250,
            "command_timeout_s": 60.0,
            "observation_chars": 10_000,
            "rollout_timeout_s": 6 * 3600.0,
        },
        "policy": {"max_new_tokens": 16_384},
    }
}


def expanded(raw: dict[str, Any]) -> dict[str, Any]:
    """`raw` with the settings of its `agent.preset` where it has none of its own. An unknown preset
    is left to the check of the configuration."""
    agent = raw.get("agent")
    name = agent.get("preset") if isinstance(agent, dict) else None
    if name not in tuple(Preset):
        return raw
    filled = dict(raw)
    for section, settings in _SETTINGS[Preset(name)].items():
        table = raw.get(section, {})
        if isinstance(table, dict):
            filled[section] = {**settings, **table}
    policy = filled["policy"]
    if isinstance(policy, dict) and "max_context" not in policy:
        own = _own_context(policy)
        if own is not None:
            policy["max_context"] = own
            # A reply must leave room for a prompt.
            if "max_new_tokens" not in raw.get("policy", {}):
                policy["max_new_tokens"] = min(policy["max_new_tokens"], own // 2)
    return filled


def with_preset(layers: Layered) -> dict[str, str]:
    """The origins of the fields, with those that a preset gives."""
    agent = layers.table.get("agent")
    name = agent.get("preset") if isinstance(agent, dict) else None
    if name is None:
        return layers.origins
    filled = Layered()
    filled.add(expanded(layers.table), f"preset {name}")
    return filled.origins | layers.origins


def _own_context(policy: dict[str, Any]) -> int | None:
    """Context of the model directory; None when its config cannot be read or lacks it."""
    if policy.get("api") == "openai":
        return ENDPOINTS_OWN_CONTEXT
    try:
        config = json.loads((Path(str(policy.get("model"))) / "config.json").read_text())
    except (OSError, ValueError):
        return None
    own = config.get("max_position_embeddings")
    return own if isinstance(own, int) else None
