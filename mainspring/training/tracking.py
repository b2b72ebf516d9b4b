"""A campaign as experiment trackers get it: figures as points of series, and traces of rollouts.

Invariants: a point is one step or one evaluation; its identity has the time at which it was
committed, so that a step which was rolled back and trained again is another point; equal store,
equal points. Pure.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mainspring.config.registry import Registry
from mainspring.config.tracking import TrackingConfig
from mainspring.trajectories.spans import Trace

STEPS = "steps"
"""The series of the training steps; an evaluation's is "evaluation/SPLIT/SAMPLING"."""
TRACES = "traces"
"""The series of steps with traces of their rollouts."""
TRACKERS: Registry[Callable[[Any], Any]] = Registry(
    "tracker",
    (
        ("mlflow", "infra.tracking.mlflow_tracker:MlflowTracker"),
        ("wandb", "infra.tracking.wandb_tracker:WandbTracker"),
    ),
    takes="given",
    methods=("open", "send", "end"),
)
"""By the name of their section in [tracking], and of the module and the extra that they need."""
TRACE_TRACKERS: Registry[Callable[[Any], Any]] = Registry(
    "tracker of traces",
    (("mlflow", "infra.tracking.mlflow_traces:MlflowTraces"),),
    takes="given",
    methods=("open", "send", "end"),
)
"""Those that show traces too, by the same names."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_/. -]")
_NOT_FIGURES = frozenset(
    {"kind", "campaign", "step", "policy_version", "time", "split", "sampling"}
)


@dataclass(frozen=True, slots=True)
class PointId:
    series: str
    step: int
    """Policy version that the step made, or that was evaluated."""
    time_ms: int
    """Since 1970."""

    def __str__(self) -> str:
        return f"{self.series}@{self.step}@{self.time_ms}"


@dataclass(frozen=True, slots=True)
class Point:
    id: PointId
    figures: Mapping[str, float | None]
    """None: not measured."""

    @property
    def names(self) -> dict[str, float | None]:
        """Its figures by names that are unique among the series of a campaign."""
        return {self.name_of(name): value for name, value in self.figures.items()}

    def name_of(self, figure: str) -> str:
        return safe_name(figure if self.id.series == STEPS else f"{self.id.series}/{figure}")


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step with traces of some of its rollouts."""

    id: PointId
    traces: tuple[Trace, ...]


@dataclass(frozen=True, slots=True)
class TrackedModel:
    """Facts that each rollout of a campaign shares."""

    campaign_uid: str
    model: str
    """Name of the policy's model."""


@dataclass(frozen=True, slots=True)
class TrackedCampaign:
    name: str
    uid: str
    """Tells it from another campaign of this name: a tracker finds its run by it."""
    parameters: Mapping[str, str]
    """Parameters of the configuration, by dotted name."""


def chosen(tracking: TrackingConfig) -> list[str]:
    """Names of the trackers that it has a section for."""
    return [name for name in TRACKERS if getattr(tracking, name) is not None]


def traces_per_step(tracking: TrackingConfig) -> dict[str, int]:
    """Number of rollouts of a step that are traced, by tracker; without those that trace none."""
    mlflow = tracking.mlflow
    return {"mlflow": mlflow.traces_per_step} if mlflow and mlflow.traces_per_step else {}


def parameters_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Parameters of a configuration as JSON; what is unset, and where services are, is left out."""
    parameters = {name: value for name, value in config.items() if name != "tracking"}
    if isinstance(policy := parameters.get("policy"), dict):
        parameters["policy"] = {name: value for name, value in policy.items() if name != "engines"}
    return dict(_flat(parameters, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}".lstrip("."))
    elif value is not None and value not in ([], ()):
        yield safe_name(path), str(value)


def point_of(line: Mapping[str, Any]) -> Point:
    """Point of a line of metrics.jsonl (`reports.metrics`)."""
    is_step = line["kind"] == "step"
    series = STEPS if is_step else evaluation_series(line["split"], line["sampling"])
    time_ms = milliseconds(datetime.fromisoformat(line["time"]))
    figures = {name: value for name, value in line.items() if name not in _NOT_FIGURES}
    return Point(PointId(series, line["step"], time_ms), figures)


def evaluation_series(split: str, sampling: str) -> str:
    return safe_name(f"evaluation/{split}/{sampling}")


def safe_name(name: str) -> str:
    """The name in characters that every tracker takes."""
    return _NOT_IN_NAMES.sub("_", name)


def milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)
