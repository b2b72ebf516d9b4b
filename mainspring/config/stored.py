"""A configuration as an earlier version of Mainspring stored it, read by this one.

A stored configuration is never rewritten: what was renamed since is translated when it is read.
Raises pydantic's ValidationError for what cannot be translated.
"""

from typing import Any

from mainspring.config.algorithm import Std
from mainspring.config.any_run import AnyRun, read_run
from mainspring.config.parallel import PLAIN, Device
from mainspring.config.section import BUNDLED
from mainspring.config.task_slice import TaskSlice
from mainspring.status import CampaignKind

_OLD_MAX_GAP = 1e-3
"""Default of `trainer.max_logprob_gap`, where it was a field."""
_OF_RUN = {
    CampaignKind.TRAIN: frozenset[str](),
    CampaignKind.EVAL: frozenset(TaskSlice.model_fields),
    CampaignKind.VERIFY: frozenset({*TaskSlice.model_fields, "players", "exploits"}),
    CampaignKind.REGRADE: frozenset({"of", "split"}),
    CampaignKind.SFT: frozenset[str](),
}
"""What each kind used of the section `run`, when all kinds had every section."""


def read_stored(kind: CampaignKind, raw: dict[str, Any]) -> AnyRun:
    if kind is CampaignKind.SFT:
        return read_run(kind, raw)
    agent = dict(raw.get("agent", {}))
    if agent.pop("short_prompts", False):
        agent["kind"] = "bundled"
    current = _of_its_kind(kind, raw) | {"agent": agent}
    if kind is CampaignKind.TRAIN:
        current["trainer"] = _trainer(raw)
    return read_run(kind, current)


def _of_its_kind(kind: CampaignKind, raw: dict[str, Any]) -> dict[str, Any]:
    """Without the sections of other kinds, which earlier versions stored with every run."""
    current = {name: given for name, given in raw.items() if name != "run"}
    current |= {name: raw["run"][name] for name in _OF_RUN[kind] & raw.get("run", {}).keys()}
    if kind is not CampaignKind.TRAIN:
        current.pop("trainer", None)
        evaluation = current.pop("evaluation", {})
        if "concurrency" in evaluation:
            current["concurrency"] = evaluation["concurrency"]
    return current


def _trainer(raw: dict[str, Any]) -> dict[str, Any]:
    trainer = dict(raw.get("trainer", {}))
    old_gap = trainer.pop("max_logprob_gap", None)
    if old_gap is not None and "gap" not in trainer:
        trainer["gap"] = {} if old_gap == _OLD_MAX_GAP else {"max": old_gap}
    if not trainer.pop("normalize_std", True):
        trainer["std"] = Std.NONE
    if trainer and "device" not in trainer:
        # The bundled model was trained wherever the trainer ran; others are for GPUs.
        bundled = raw.get("policy", {}).get("model", BUNDLED) == BUNDLED
        trainer["device"] = Device.CPU if bundled else Device.CUDA
    if trainer:
        trainer.setdefault("engine", PLAIN)  # the only one, before engines were chosen by device
    return trainer
